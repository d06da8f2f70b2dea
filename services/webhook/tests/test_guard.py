"""Pods that reach a GPU without having asked for one, and those that have."""

import asyncio
import json
from typing import Any
from unittest.mock import Mock

import jsonpatch
import msgspec
import pytest

from isolator_webhook import review
from isolator_webhook.basis import Unknown, always
from isolator_webhook.options import Options, Treatment

VOID = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}
ALL = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}
ENFORCE = Options(guard="enforce")


def guarded(
    world: Any, pod: Any, options: Options = ENFORCE, treatment: Treatment = "guard", **changes: Any
) -> tuple[review.Outcome, Any]:
    request = review.decode(json.dumps(world.review_of(pod, **changes)).encode()).request
    outcome = asyncio.run(review.outcome(request, always(Unknown("not asked")), options, treatment))
    operations = json.loads(msgspec.json.encode(outcome.operations))
    return outcome, jsonpatch.apply_patch(json.loads(json.dumps(pod)), operations)


def nvidia_pod(world: Any, *containers: Any, annotations: dict[str, str] | None = None, **spec: Any) -> Any:
    return world.a_pod(annotations, **({"runtimeClassName": "nvidia", "containers": list(containers)} | spec))


def envs(pod: Any) -> list[Any]:
    return [container.get("env") for container in pod["spec"]["containers"]]


@pytest.mark.parametrize(
    "variable",
    [ALL, {"name": "NVIDIA_VISIBLE_DEVICES", "value": "GPU-1"},
     {"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"configMapKeyRef": {"name": "x", "key": "y"}}}],
)  # fmt: skip
def test_environment_is_taken_away(world: Any, variable: Any) -> None:
    outcome, after = guarded(world, nvidia_pod(world, {"name": "main", "env": [{"name": "A"}, variable]}))
    assert (outcome.result, outcome.findings) == ("patched", ["environment"])
    assert "container main: NVIDIA_VISIBLE_DEVICES" in outcome.notices[0]
    assert envs(after) == [[{"name": "A"}, VOID]]
    assert guarded(world, after)[0].operations == []


@pytest.mark.parametrize("extra", [{}, {"env": []}, {"envFrom": [{"configMapRef": {"name": "x"}}]}])
def test_what_the_image_or_a_config_map_may_say_is_overruled(world: Any, extra: dict[str, Any]) -> None:
    outcome, after = guarded(world, nvidia_pod(world, {"name": "main"} | extra))
    assert (outcome.findings, envs(after)) == ([], [[VOID]])


def test_sidecars_of_a_pod_that_shares(world: Any) -> None:
    pod = nvidia_pod(
        world, {"name": "main", "env": [ALL]}, {"name": "side"}, annotations={"gpu-memory": "1"},
        initContainers=[{"name": "prepare", "env": [ALL]}],
    )  # fmt: skip
    outcome, after = guarded(world, pod)
    assert envs(after) == [[ALL], [VOID]]
    assert after["spec"]["initContainers"][0]["env"] == [VOID]
    assert outcome.findings == ["environment"]
    assert outcome.audit == {"without_gpu": "prepare, side", "notices": outcome.notices[0]}
    again, _ = guarded(world, after)
    assert (again.result, again.audit) == ("allowed", {})


@pytest.mark.parametrize(
    "resources",
    [
        {"limits": {"nvidia.com/gpu": "1"}},
        {"limits": {"nvidia.com/gpu.shared": "1"}},
        {"limits": {"nvidia.com/mig-1g.5gb": 1}},
        {"claims": [{"name": "gpu"}]},
    ],
)
def test_whole_gpus_and_claims_keep_theirs(world: Any, resources: Any) -> None:
    pod = nvidia_pod(world, {"name": "main", "env": [ALL], "resources": resources}, {"name": "side"})
    outcome, after = guarded(world, pod)
    assert outcome.findings == []
    assert envs(after) == [[ALL], [VOID]]


@pytest.mark.parametrize("resources", [{"limits": {"nvidia.com/gpu": "0"}}, {"claims": []}, {"limits": {"cpu": "9"}}])
def test_what_only_looks_like_a_request(world: Any, resources: Any) -> None:
    outcome, _ = guarded(world, nvidia_pod(world, {"name": "main", "env": [ALL], "resources": resources}))
    assert outcome.findings == ["environment"]


def test_labels_authorise_nothing(world: Any) -> None:
    pod = nvidia_pod(world, {"name": "main", "env": [ALL]})
    pod["metadata"]["labels"] = {"kai-resource-isolator.io/webhook": "ignore", "runai-gpu-group": "x"}
    pod["metadata"]["annotations"] = {"kai-resource-isolator.io/inject": "false"}
    assert guarded(world, pod)[0].findings == ["environment"]


@pytest.mark.parametrize(
    ("annotations", "mounts", "way"),
    [
        ({"cdi.k8s.io/x": "nvidia.com/gpu=all"}, [], "cdi_annotation"),
        ({"nvidia.cdi.k8s.io/container.main": "management.nvidia.com/gpu=all"}, [], "cdi_annotation"),
        ({"nvidia.com/container.main.gpus.devices": "GPU-1"}, [], "devices_annotation"),
        ({}, [{"name": "x", "mountPath": "/var/run/nvidia-container-devices/all"}], "device_mount"),
        ({}, [{"name": "x", "mountPath": "/var/run//nvidia-container-devices/all"}], "device_mount"),
        ({}, [{"name": "x", "mountPath": "var/run/x/../nvidia-container-devices/./all"}], "device_mount"),
    ],
)
def test_ways_that_cannot_be_taken_away_are_refused(world: Any, annotations: Any, mounts: Any, way: str) -> None:
    pod = nvidia_pod(world, {"name": "main", "volumeMounts": mounts}, annotations=annotations)
    outcome, _ = guarded(world, pod)
    assert (outcome.result, outcome.findings) == ("denied", [way])
    assert "accepted is a share" in outcome.message
    audited, _ = guarded(world, pod, Options(guard="audit"))
    assert (audited.result, audited.findings, len(audited.notices)) == ("allowed", [way], 1)


OPTED_OUT = {"gpu-memory": "1", "kai-resource-isolator.io/inject": "false"}
GPUMEM = {"resources": {"limits": {"nvidia.com/gpumem": "1"}}}


@pytest.mark.parametrize(
    ("annotations", "container", "spec"),
    [
        (OPTED_OUT, {}, {"schedulerName": "default-scheduler"}),
        (OPTED_OUT, {}, {"nodeName": "node-1"}),
        (None, GPUMEM, {"schedulerName": "default-scheduler"}),
        (None, GPUMEM, {"schedulerName": "hami-scheduler", "nodeName": "node-1"}),
    ],
)
def test_a_share_that_nobody_caps_or_gives_authorises_nothing(
    world: Any, annotations: Any, container: Any, spec: Any
) -> None:
    pod = nvidia_pod(world, {"name": "main", "env": [ALL]} | container, annotations=annotations, **spec)
    assert world.outcome_of(pod, options=ENFORCE).result == "allowed"
    outcome, after = guarded(world, pod)
    assert (outcome.findings, envs(after)) == (["environment"], [[VOID]])


LABELLED = {"kai-resource-isolator.io/webhook": "ignore"}


@pytest.mark.parametrize(("annotations", "labels"), [(OPTED_OUT, {}), ({"gpu-memory": "1"}, LABELLED)])
def test_an_opt_out_that_does_not_count_leaves_a_capped_share(world: Any, annotations: Any, labels: Any) -> None:
    pod = nvidia_pod(world, {"name": "main", "env": [ALL]}, annotations=annotations, schedulerName="default-scheduler")
    pod["metadata"]["labels"] = labels
    assert world.outcome_of(pod, options=ENFORCE, treatment="enforce").reason == "share"
    outcome, after = guarded(world, pod, treatment="guard-enforce")
    assert (outcome.findings, envs(after)) == ([], [[ALL]])


def test_the_debug_container_of_a_share_that_is_capped_in_spite_of_its_opt_out(world: Any) -> None:
    old = nvidia_pod(world, {"name": "main"}, annotations=OPTED_OUT, schedulerName="default-scheduler")
    new = json.loads(json.dumps(old))
    new["spec"]["ephemeralContainers"] = [{"name": "debug", "env": [ALL]}]
    asked = {"operation": "UPDATE", "subResource": "ephemeralcontainers", "oldObject": old}
    assert guarded(world, new, treatment="guard-enforce", **asked)[0].operations == []
    assert guarded(world, new, **asked)[0].operations != []


@pytest.mark.parametrize(
    ("annotations", "container", "spec"),
    [(OPTED_OUT, {}, {}), (None, GPUMEM, {"schedulerName": "hami-scheduler"})],
)
def test_a_share_that_its_scheduler_gives_stays(world: Any, annotations: Any, container: Any, spec: Any) -> None:
    """KAI and HAMi set the variable themselves, whatever the author wrote there."""
    pod = nvidia_pod(world, {"name": "main", "env": [ALL]} | container, annotations=annotations, **spec)
    outcome, after = guarded(world, pod)
    assert (outcome.findings, envs(after)) == ([], [[ALL]])


@pytest.mark.parametrize("bound", [{}, {"nodeName": "node-1"}])
def test_debug_containers_of_a_pod_that_opted_out(world: Any, bound: dict[str, str]) -> None:
    old = nvidia_pod(world, {"name": "main"}, annotations=OPTED_OUT, **bound)
    new = json.loads(json.dumps(old))
    new["spec"]["ephemeralContainers"] = [{"name": "debug", "env": [ALL]}]
    _, after = guarded(world, new, operation="UPDATE", subResource="ephemeralcontainers", oldObject=old)
    assert after["spec"]["ephemeralContainers"][0]["env"] == [VOID]


def test_privileged_containers_are_told_of(world: Any) -> None:
    pod = world.a_pod({}, containers=[{"name": "main", "securityContext": {"privileged": True}}])
    outcome, after = guarded(world, pod)
    assert (outcome.result, outcome.findings, after) == ("allowed", ["privileged"], pod)
    assert "privileged" in outcome.notices[0]


def test_other_runtimes_are_left_alone(world: Any) -> None:
    for runtime in ({}, {"runtimeClassName": "kata"}):
        pod = world.a_pod({}, containers=[{"name": "main", "env": [ALL]}], **runtime)
        assert guarded(world, pod)[0].operations == []
    pod = world.a_pod({}, containers=[{"name": "main", "env": [ALL]}])
    default = Options(guard="enforce", nvidia_is_default_runtime=True)
    assert envs(guarded(world, pod, default)[1]) == [[VOID]]
    pod["spec"]["runtimeClassName"] = "kata"
    assert guarded(world, pod, default)[0].operations == []


def test_audit_changes_nothing(world: Any) -> None:
    pod = nvidia_pod(world, {"name": "main", "env": [ALL]})
    outcome, after = guarded(world, pod, Options(guard="audit"))
    assert (outcome.result, outcome.findings, after) == ("allowed", ["environment"], pod)
    assert len(outcome.notices) == 1


@pytest.mark.parametrize("treatment", ["guard", "guard-enforce"])
@pytest.mark.parametrize(("mode", "result"), [("audit", "failed_open"), ("enforce", "failed")])
def test_a_fault_of_ours_refuses_nothing_where_the_guard_only_tells(
    world: Any, monkeypatch: pytest.MonkeyPatch, treatment: Treatment, mode: Any, result: str
) -> None:
    monkeypatch.setattr("isolator_webhook.guard.decide", Mock(side_effect=RuntimeError("not foreseen")))
    pod = nvidia_pod(world, {"name": "main", "env": [ALL]})
    outcome, _ = guarded(world, pod, Options(guard=mode), treatment)
    assert outcome.result == result
    assert "internal error" in outcome.message + "".join(outcome.notices)


@pytest.mark.parametrize(
    ("options", "reason"),
    [(Options(), "guard_off"), (Options(guard="enforce", guard_exempt_namespaces=("default",)), "exempt_namespace")],
)
def test_off_and_exempt_namespaces(world: Any, options: Options, reason: str) -> None:
    outcome, _ = guarded(world, nvidia_pod(world, {"name": "main", "env": [ALL]}), options)
    assert (outcome.result, outcome.reason, outcome.findings) == ("allowed", reason, [])


def test_debug_containers(world: Any) -> None:
    old = nvidia_pod(world, {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}})
    old["spec"]["ephemeralContainers"] = [{"name": "earlier", "env": [ALL]}]
    new = json.loads(json.dumps(old))
    new["spec"]["ephemeralContainers"].append({"name": "debug", "env": [ALL]})
    _, after = guarded(world, new, operation="UPDATE", subResource="ephemeralcontainers", oldObject=old)
    assert [container["env"] for container in after["spec"]["ephemeralContainers"]] == [[ALL], [VOID]]
    assert after["spec"]["containers"] == old["spec"]["containers"]
