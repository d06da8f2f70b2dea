"""`kubectl debug`: what a container gets that is added to a running pod."""

import asyncio
import json
from typing import Any

import jsonpatch
import msgspec
import pytest

from isolator_webhook import review
from isolator_webhook.basis import Known, always
from isolator_webhook.options import LibraryImage, Options

MOUNTED = ["kai-resource-isolator-lib", "kai-resource-isolator-preload", "kai-resource-isolator-limits-0",
           "kai-resource-isolator-region-0"]  # fmt: skip
VOID = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}


def debugged(
    world: Any, pod: Any, *added: dict[str, Any], earlier: Any = (), options: Options | None = None
) -> tuple[review.Outcome, Any]:
    old = json.loads(json.dumps(pod))
    old["spec"]["ephemeralContainers"] = list(earlier)
    new = json.loads(json.dumps(pod))
    new["spec"]["ephemeralContainers"] = [*earlier, *added]
    document = world.review_of(new, operation="UPDATE", subResource="ephemeralcontainers", oldObject=old)
    request = review.decode(json.dumps(document).encode()).request
    outcome = asyncio.run(review.outcome(request, always(Known(15360, 15360)), options or Options()))
    operations = json.loads(msgspec.json.encode(outcome.operations))
    after = jsonpatch.apply_patch(new, operations)
    without = json.loads(json.dumps(after))
    del without["spec"]["ephemeralContainers"]
    assert without == pod, "only ephemeral containers may change"
    return outcome, after["spec"]["ephemeralContainers"]


@pytest.fixture
def running(world: Any) -> Any:
    return world.defaulted(
        world.admitted(world.a_pod({"gpu-memory": "1"}, containers=[{"name": "main"}, {"name": "side"}]))
    )


def test_target_with_a_share(world: Any, running: Any) -> None:
    outcome, (debug,) = debugged(world, running, {"name": "debug", "targetContainerName": "main"})
    assert (outcome.result, outcome.notices) == ("patched", [])
    assert debug["volumeMounts"] == running["spec"]["containers"][0]["volumeMounts"]
    assert VOID not in debug["env"]
    assert outcome.audit == {"ephemeral": "debug"}
    assert {"name": "CONTAINER_NAME", "value": "main"} in debug["env"]


@pytest.mark.parametrize(
    "own",
    [
        {},
        {"env": []},
        {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}, {"name": "A", "value": "1"}]},
        {"env": [{"name": "CUDA_DEVICE_MEMORY_LIMIT_0", "value": "1g"}, VOID, VOID]},
    ],
)
@pytest.mark.parametrize("hamicore", [True, False])
def test_the_targets_devices_and_no_others(world: Any, own: dict[str, Any], hamicore: bool) -> None:
    """Images for CUDA say `all` by themselves, which would show every card of the node."""
    running = world.defaulted(world.after_kai(world.admitted(world.a_pod({"gpu-memory": "1"})), hamicore=hamicore))
    (given,) = [one for one in running["spec"]["containers"][0]["env"] if one["name"] == "NVIDIA_VISIBLE_DEVICES"]
    running = world.admitted(running)
    added = {"name": "debug", "targetContainerName": "main"}
    _, (debug,) = debugged(world, running, added | own)
    shown = [one for one in debug["env"] if one["name"] == "NVIDIA_VISIBLE_DEVICES"]
    assert {json.dumps(one) for one in shown} == {json.dumps(given)}
    assert all(not one["name"].startswith("CUDA_DEVICE_MEMORY_LIMIT_") for one in debug["env"])
    assert debugged(world, running, debug)[0].operations == []


@pytest.mark.parametrize("target", [{"targetContainerName": "side"}, {}, {"targetContainerName": "other"}])
def test_other_targets_see_no_gpu(world: Any, running: Any, target: dict[str, str]) -> None:
    outcome, (debug,) = debugged(world, running, {"name": "debug"} | target)
    assert debug["env"] == [VOID]
    assert "volumeMounts" not in debug
    (notice,) = outcome.notices
    assert outcome.audit == {"ephemeral": "debug", "notices": notice}
    assert "debug" in notice
    assert "main" in notice


def test_a_region_on_the_node_cannot_be_mounted(world: Any) -> None:
    """Sub-paths are forbidden there, and the whole directory is every tenant's."""
    on_the_node = Options(region="hostPath")
    pod = world.defaulted(world.admitted(world.a_pod({"gpu-memory": "1"}), options=on_the_node))
    for options in (on_the_node, Options()):
        outcome, (debug,) = debugged(world, pod, {"name": "debug", "targetContainerName": "main"}, options=options)
        assert debug == {"name": "debug", "targetContainerName": "main", "env": [VOID]}
        (notice,) = outcome.notices
        assert "kubectl exec" in notice


def test_where_no_target_has_a_gpu_none_is_offered(world: Any) -> None:
    on_the_node = Options(region="hostPath")
    pod = world.defaulted(world.admitted(world.a_pod({"gpu-memory": "1"}), options=on_the_node))
    outcome, _ = debugged(world, pod, {"name": "debug"}, options=on_the_node)
    assert outcome.notices[0].endswith(
        "accepted for a GPU is a process in a container with a share (kubectl exec), main"
    )


def test_a_region_from_before_the_choice_is_mounted_as_it_is(world: Any, running: Any) -> None:
    added = {"name": "debug", "targetContainerName": "main"}
    _, (debug,) = debugged(world, running, added, options=Options(region="hostPath"))
    assert debug["volumeMounts"] == running["spec"]["containers"][0]["volumeMounts"]


def test_a_pod_from_before_sees_no_gpu(world: Any) -> None:
    outcome, (debug,) = debugged(world, world.a_pod({"gpu-memory": "1"}), {"name": "d", "targetContainerName": "main"})
    assert debug["env"] == [VOID]
    assert outcome.result == "patched"


def test_a_pod_that_asks_wrongly_sees_no_gpu(world: Any) -> None:
    _, (debug,) = debugged(world, world.a_pod({"gpu-memory": "x"}), {"name": "d", "targetContainerName": "main"})
    assert debug["env"] == [VOID]


def test_a_pod_whose_author_took_the_request_away_sees_no_gpu(world: Any, running: Any) -> None:
    """What the webhook wrote does not change after creation; what the author wrote may."""
    del running["metadata"]["annotations"]["gpu-memory"]
    for target in ({"targetContainerName": "main"}, {}):
        outcome, (debug,) = debugged(world, running, {"name": "debug"} | target)
        assert debug["env"] == [VOID]
        assert outcome.result == "patched"


def test_devices_that_were_asked_for_are_taken_back(world: Any, running: Any) -> None:
    env = [
        {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
        {"name": "A", "value": "1"},
        {"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"configMapKeyRef": {"name": "x", "key": "y"}}},
    ]
    _, (debug,) = debugged(world, running, {"name": "debug", "env": env})
    assert debug["env"] == [{"name": "A", "value": "1"}, VOID]
    outcome, (debug,) = debugged(world, running, {"name": "debug", "env": [VOID]})
    assert outcome.operations == []
    assert debug["env"] == [VOID]


@pytest.mark.parametrize("library_image", [LibraryImage("library:1"), None])
def test_no_ephemeral_container_can_mount_the_preload_file_of_an_image(world: Any, library_image: Any) -> None:
    image = Options(library_image=LibraryImage("library:1"))
    running = world.defaulted(world.admitted(world.a_pod({"gpu-memory": "1"}), options=image))
    added = {"name": "debug", "targetContainerName": "main"}
    outcome, (debug,) = debugged(world, running, added, options=Options(library_image=library_image))
    assert debug["env"] == [VOID]
    assert "volumeMounts" not in debug
    assert "comes from an image" in outcome.notices[0]


def test_a_pod_from_before_images_lends_the_files_of_its_node(world: Any, running: Any) -> None:
    added = {"name": "debug", "targetContainerName": "main"}
    _, (debug,) = debugged(world, running, added, options=Options(library_image=LibraryImage("library:1")))
    assert debug["volumeMounts"] == running["spec"]["containers"][0]["volumeMounts"]


def test_earlier_ones_stay_as_they_are(world: Any, running: Any) -> None:
    earlier = [{"name": "old", "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}]
    _, (old, new) = debugged(world, running, {"name": "new"}, earlier=earlier)
    assert old == earlier[0]
    assert new["env"] == [VOID]


def test_our_volumes_cannot_be_borrowed(world: Any, running: Any) -> None:
    for volume in MOUNTED:
        outcome, _ = debugged(world, running, {"name": "d", "volumeMounts": [{"name": volume, "mountPath": "/mine"}]})
        assert (outcome.result, outcome.reason) == ("denied", "conflict")
        assert "spec.ephemeralContainers[0]" in outcome.message


def test_rights_to_unmount_are_told(world: Any, running: Any) -> None:
    added = {"name": "d", "targetContainerName": "main", "securityContext": {"privileged": True}}
    outcome, _ = debugged(world, running, added)
    assert "securityContext.privileged" in outcome.notices[0]


@pytest.mark.parametrize("annotations", [{}, {"gpu-memory": "1", "kai-resource-isolator.io/inject": "false"}])
def test_pods_without_a_share_are_left_alone(world: Any, annotations: dict[str, str]) -> None:
    outcome, (debug,) = debugged(world, world.a_pod(annotations), {"name": "debug"})
    assert outcome.result == "allowed"
    assert debug == {"name": "debug"}
