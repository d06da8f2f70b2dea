"""What becomes of each kind of pod, and what its author is told."""

from typing import Any

import pytest

from isolator_core.requests import hami
from isolator_webhook.basis import Known, Unknown
from isolator_webhook.options import Options

T4 = Known(15360, 15360)
MIXED = Known(15360, 81559)
OURS = "kai-resource-isolator.io/"
REQUEST = OURS + "request."
CONTAINER = "nvidia.com/container."


def requests_of(pod: Any) -> dict[str, str]:
    found = pod["metadata"].get("annotations", {})
    return {key.removeprefix(REQUEST): value for key, value in found.items() if key.startswith(REQUEST)}


def notices_of(world: Any, pod: Any, *arguments: Any) -> list[str]:
    outcome = world.outcome_of(pod, *arguments)
    assert outcome.result == "patched", outcome.message
    after = world.admitted(pod, *arguments)
    assert after["metadata"]["annotations"].get(OURS + "notice", "") == "\n".join(outcome.notices)
    assert all(len(notice) <= 256 for notice in outcome.notices), "longer warnings may be cut by the API server"
    return list(outcome.notices)


def hami_pod(world: Any, limits: dict[str, Any], scheduler: str = "kai-scheduler", **more: Any) -> Any:
    container = {"name": "main", "resources": {"limits": {"cpu": "1"} | limits, "requests": dict(limits)}}
    return world.a_pod(None, schedulerName=scheduler, containers=[{"name": "side"}, container], **more)


def test_cores_and_priority_travel(world: Any) -> None:
    pod = world.admitted(world.a_pod({"gpu-memory": "1", OURS + "gpu-cores": "30", OURS + "priority": "0"}))
    assert requests_of(pod) == {"0": "container=main\nmemory=1m\ndevices=1\ncores=30\npriority=0\n"}


def test_containers_by_their_own_annotations(world: Any) -> None:
    pod = world.a_pod(
        {f"{CONTAINER}main.gpu-memory.limit": "5Gi", f"{CONTAINER}prepare.gpu-memory.limit": "1Gi"},
        initContainers=[{"name": "prepare", "restartPolicy": "Always"}],
    )
    after = world.admitted(pod)
    assert requests_of(after) == {
        "i0": "container=prepare\nmemory=1024m\ndevices=1\n",
        "0": "container=main\nmemory=5120m\ndevices=1\n",
    }
    mounted = [mount["name"] for mount in after["spec"]["initContainers"][0]["volumeMounts"]]
    assert mounted[2:] == ["kai-resource-isolator-limits-i0", "kai-resource-isolator-region-i0"]
    assert len(after["spec"]["volumes"]) == 6
    assert len(notices_of(world, pod)) == 2
    assert "before 0.18" in notices_of(world, pod)[0]
    assert notices_of(world, pod, T4, Options(kai_reads_containers=True)) == []
    assert world.outcome_of(world.defaulted(after)).operations == []


@pytest.mark.parametrize(
    ("limits", "annotations", "left", "request_text"),
    [
        (
            {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4096", "nvidia.com/gpucores": "30"},
            {"gpu-memory": "4096", OURS + "gpu-cores": "30"},
            {},
            "memory=4096m\ndevices=1\ncores=30\n",
        ),
        (
            {"nvidia.com/gpu": 2, "nvidia.com/gpumem-percentage": 30, "nvidia.com/priority": 0},
            {"gpu-fraction": "0.3", "gpu-fraction-num-devices": "2", OURS + "priority": "0"},
            {},
            "fraction=0.3\ndevices=2\npriority=0\n",
        ),
        (
            {"nvidia.com/gpu": "2", "nvidia.com/gpucores": "30"},
            {OURS + "gpu-cores": "30"},
            {"nvidia.com/gpu": "2"},
            "fraction=1\ndevices=2\ncores=30\n",
        ),
        (
            {"nvidia.com/gpucores": "30"},
            {OURS + "gpu-cores": "30"},
            {"nvidia.com/gpu": "1"},
            "fraction=1\ndevices=1\ncores=30\n",
        ),
    ],
)
def test_resources_become_annotations(
    world: Any, limits: dict[str, Any], annotations: dict[str, str], left: dict[str, str], request_text: str
) -> None:
    pod = hami_pod(world, limits)
    after = world.admitted(pod)
    found = dict(after["metadata"]["annotations"])
    assert found.pop(REQUEST + "1") == "container=main\n" + request_text
    named = {} if left else {"gpu-fraction-container-name": "main"}
    assert found == annotations | named
    assert after["spec"]["containers"][1]["resources"]["limits"] == {"cpu": "1"} | left
    assert set(after["spec"]["containers"][1]["resources"]["requests"]) <= set(left)
    again = world.outcome_of(world.defaulted(after))
    assert (again.result, again.operations) == ("patched", [])


def test_resources_in_several_containers(world: Any) -> None:
    limits = {"resources": {"limits": {"nvidia.com/gpumem": "1"}}}
    pod = world.a_pod(containers=[{"name": "a"} | limits, {"name": "b"} | limits])
    outcome = world.outcome_of(pod)
    assert (outcome.result, outcome.reason) == ("denied", "several_containers")
    assert "a, b" in outcome.message
    pod["spec"]["schedulerName"] = "other"
    after = world.admitted(pod, options=Options(hami_resources="cap"))
    assert sorted(requests_of(after)) == ["0", "1"]
    assert after["spec"]["containers"][0]["resources"] == limits["resources"]


@pytest.mark.parametrize(
    ("scheduler", "mode", "reason"),
    [
        ("hami-scheduler", "translate", "hami_scheduler"),
        ("hami-scheduler", "cap", "hami_scheduler"),
        ("default-scheduler", "translate", "other_scheduler"),
        ("default-scheduler", "cap", "share"),
        ("kai-scheduler", "cap", "share"),
        ("kai-scheduler", "translate", "share"),
    ],
)
def test_resources_by_scheduler(world: Any, scheduler: str, mode: Any, reason: str) -> None:
    pod = hami_pod(world, {"nvidia.com/gpumem": "1"}, scheduler)
    assert world.outcome_of(pod, options=Options(hami_resources=mode)).reason == reason


def test_whole_gpus_are_left_alone(world: Any) -> None:
    assert world.outcome_of(hami_pod(world, {"nvidia.com/gpu": "1"})).reason == "no_request"


def test_names_of_resources(world: Any) -> None:
    pod = hami_pod(world, {"example.com/gpumem": "7"})
    assert world.outcome_of(pod).reason == "no_request"
    after = world.admitted(pod, options=Options(resources=hami.resource_names(["example.com/gpumem"])))
    assert after["metadata"]["annotations"]["gpu-memory"] == "7"


def test_basis_bounds_a_fraction_where_wanted(world: Any) -> None:
    pod = world.a_pod({"gpu-fraction": "0.25"})
    options = Options(fraction_of="basis")
    assert requests_of(world.admitted(pod, T4, options)) == {
        "0": "container=main\nfraction=0.25\nat-most=3840m\ndevices=1\n"
    }
    assert requests_of(world.admitted(pod, Unknown("down"), options)) == {
        "0": "container=main\nfraction=0.25\ndevices=1\n"
    }


def test_whole_gpus_are_not_bounded_by_the_smallest_of_the_cluster(world: Any) -> None:
    options = Options(fraction_of="basis")
    whole = [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]
    for pod in (
        world.a_pod({OURS + "gpu-cores": "30"}, containers=whole),
        hami_pod(world, {"nvidia.com/gpucores": 30}),
    ):
        (text,) = requests_of(world.admitted(pod, T4, options)).values()
        assert text == "container=main\nfraction=1\ndevices=1\ncores=30\n"


PORTION = "kai.scheduler/container.main.gpu-memory.portion.limit"


@pytest.mark.parametrize(
    ("annotations", "text", "limit"),
    [
        ({"gpu-fraction": "0.5", PORTION: "0.8"}, "fraction=0.8", "12288m"),
        ({"gpu-fraction": "0.5", "gpu-fraction.limit": "0.8"}, "fraction=0.8", "12288m"),
        ({"gpu-memory": "4096", "gpu-memory.limit": "8Gi"}, "memory=8192m", "8192m"),
    ],
)
def test_a_limit_above_the_request_is_what_holds(
    world: Any, annotations: dict[str, str], text: str, limit: str
) -> None:
    pod = world.admitted(world.a_pod(annotations))
    assert requests_of(pod) == {"0": f"container=main\n{text}\ndevices=1\n"}
    variables = {entry["name"]: entry.get("value") for entry in pod["spec"]["containers"][0]["env"]}
    assert variables["CUDA_DEVICE_MEMORY_LIMIT"] == limit


@pytest.mark.parametrize(
    ("annotations", "basis", "words"),
    [
        ({"gpu-fraction": "0.004"}, T4, ["0.004", "0.00", "fraction 0.004 is enforced"]),
        ({"gpu-fraction": "0.004", "gpu-fraction.limit": "0.5"}, T4, ["0.004", "0.00", "fraction 0.5 is enforced"]),
        ({"gpu-fraction": "0.996"}, T4, ["0.996", "1.00", "the whole card"]),
        ({"gpu-fraction": "0.5"}, Unknown("no GPU node"), ["no GPU node", "CUDA_DEVICE_MEMORY_LIMIT"]),
        ({"gpu-memory": "15360"}, T4, ["15360 MiB", "fit no GPU", "15300"]),
        ({"gpu-memory": "90000"}, MIXED, ["90000 MiB", "fit no GPU", "81559", "81500"]),
        ({"gpu-memory": "15300"}, T4, ["15300 MiB", "the whole of a GPU with 15360 MiB"]),
        ({"gpu-memory": "18446744073709551615"}, Unknown("down"), ["KAI's scheduler ignores"]),
    ],
)
def test_doubtful_shares_are_told(world: Any, annotations: dict[str, str], basis: Any, words: list[str]) -> None:
    (notice,) = notices_of(world, world.a_pod(annotations), basis)
    assert "container main" in notice
    for word in words:
        assert word in notice


@pytest.mark.parametrize(
    ("annotations", "basis"),
    [
        ({"gpu-fraction": "0.5"}, T4),
        ({"gpu-fraction": "0.005"}, T4),
        ({"gpu-fraction": "0.99"}, T4),
        ({"gpu-memory": "4096"}, T4),
        ({"gpu-memory": "4096", "gpu-memory.limit": "16Gi"}, T4),
        ({"gpu-fraction": "0.5", "gpu-fraction.limit": "0.999"}, T4),
        ({"gpu-memory": "20000"}, MIXED),
        ({"gpu-memory": "90000"}, Unknown("down")),
    ],
)
def test_plain_shares_are_not_commented(world: Any, annotations: dict[str, str], basis: Any) -> None:
    assert notices_of(world, world.a_pod(annotations), basis) == []


def test_what_kai_makes_of_a_share_is_told_only_where_kai_places_it(world: Any) -> None:
    pod = hami_pod(world, {"nvidia.com/gpumem": "15360"}, "default-scheduler")
    assert notices_of(world, pod, T4, Options(hami_resources="cap")) == []
    (notice,) = notices_of(world, hami_pod(world, {"nvidia.com/gpumem": "15360"}))
    assert "KAI gives at most 15300" in notice


def test_a_notice_of_several_lines_is_told_once(world: Any) -> None:
    """Kubernetes does not check the name of a scheduler."""
    after = world.admitted(world.a_pod({"gpu-memory": "1"}, schedulerName="a\nb\u2028c"))
    assert world.outcome_of(after).operations == []


def test_limits_that_sum_up_to_more_than_a_card(world: Any) -> None:
    pod = world.a_pod(
        {f"{CONTAINER}main.gpu-memory.limit": "10Gi", f"{CONTAINER}side.gpu-memory.limit": "6Gi"},
        containers=[{"name": "main"}, {"name": "side"}],
    )
    options = Options(kai_reads_containers=True)
    (notice,) = notices_of(world, pod, T4, options)
    assert "16384 MiB" in notice
    assert "15360 MiB" in notice
    assert notices_of(world, pod, Known(20000, 20000), options) == []


@pytest.mark.parametrize(
    ("spec", "word"),
    [
        ({"schedulerName": "default-scheduler"}, "spec.schedulerName is default-scheduler"),
        ({"schedulerName": ""}, "spec.schedulerName is default-scheduler"),
        ({"nodeName": "n1"}, "spec.nodeName is n1"),
    ],
)
def test_a_share_that_kai_will_not_give(world: Any, spec: dict[str, Any], word: str) -> None:
    pod = world.a_pod({"gpu-memory": "1"}, **spec)
    (notice,) = notices_of(world, pod)
    assert word in notice
    assert requests_of(world.admitted(pod)) == {"0": "container=main\nmemory=1m\ndevices=1\n"}


def test_name_of_the_scheduler_is_a_choice(world: Any) -> None:
    pod = world.a_pod({"gpu-memory": "1"}, schedulerName="kai-two")
    assert notices_of(world, pod, T4, Options(kai_scheduler="kai-two")) == []


@pytest.mark.parametrize(
    ("context", "word"),
    [
        ({"privileged": True}, "securityContext.privileged"),
        ({"capabilities": {"add": ["NET_ADMIN", "SYS_ADMIN"]}}, "capability SYS_ADMIN"),
        ({"capabilities": {"add": ["ALL"]}}, "capability ALL"),
        ({"privileged": False, "capabilities": {"drop": ["ALL"]}}, None),
        ({"capabilities": {"add": ["NET_ADMIN"]}}, None),
    ],
)
def test_a_container_that_could_undo_its_limit(world: Any, context: dict[str, Any], word: str | None) -> None:
    pod = world.a_pod(
        {"gpu-memory": "1"},
        containers=[
            {"name": "main", "securityContext": context},
            {"name": "x", "securityContext": {"privileged": True}},
        ],
    )
    assert [word in notice for notice in notices_of(world, pod)] == [True] * (word is not None)


def test_windows(world: Any) -> None:
    outcome = world.outcome_of(world.a_pod({"gpu-memory": "1"}, os={"name": "windows"}))
    assert (outcome.result, outcome.reason) == ("denied", "windows")
    assert "spec.os.name is windows" in outcome.message
    assert world.outcome_of(world.a_pod({}, os={"name": "windows"})).result == "allowed"
    assert world.outcome_of(world.a_pod({"gpu-memory": "1"}, os={"name": "linux"})).result == "patched"


def test_mirror_pods_of_static_pods(world: Any) -> None:
    pod = world.a_pod({"gpu-memory": "1", "kubernetes.io/config.mirror": "x"}, nodeName="n1")
    assert world.outcome_of(pod).reason == "mirror_pod"


@pytest.mark.parametrize("spec", [{"hostPID": True}, {"hostNetwork": True, "hostIPC": True}])
def test_namespaces_of_the_host_change_nothing(world: Any, spec: dict[str, Any]) -> None:
    assert notices_of(world, world.a_pod({"gpu-memory": "1"}, **spec)) == []


def test_generated_names(world: Any) -> None:
    pod = world.a_pod({"gpu-memory": "1"})
    pod["metadata"] = {"generateName": "a-", "annotations": pod["metadata"]["annotations"]}
    assert requests_of(world.admitted(pod)) == {"0": "container=main\nmemory=1m\ndevices=1\n"}


def test_names_that_are_given_twice(world: Any) -> None:
    pod = world.a_pod(
        {"gpu-memory": "1", "gpu-fraction-container-name": "main"},
        initContainers=[{"name": "main"}],
        containers=[{"name": "main"}, {"name": "main"}],
        volumes=[{"name": "kai-resource-isolator-lib", "emptyDir": {}}] * 2,
    )
    after = world.admitted(pod)
    assert list(requests_of(after)) == ["i0"]
    assert "volumeMounts" not in after["spec"]["containers"][0]


OPT_OUTS = [{"annotations": {OURS + "inject": "false"}}, {"labels": {OURS + "webhook": "ignore"}}]


@pytest.mark.parametrize("metadata", OPT_OUTS)
@pytest.mark.parametrize(
    ("options", "treatment", "heeded"),
    [
        (Options(), "default", True),
        (Options(pod_opt_out=False), "default", False),
        (Options(), "enforce", False),
        (Options(), "exempt", True),
    ],
)
def test_opt_outs_of_a_pod(
    world: Any, metadata: dict[str, Any], options: Options, treatment: Any, heeded: bool
) -> None:
    pod = world.a_pod({"gpu-memory": "1"} | metadata.get("annotations", {}))
    pod["metadata"]["labels"] = metadata.get("labels", {})
    if heeded:
        assert world.outcome_of(pod, T4, options, treatment).reason == "opted_out"
    else:
        (notice,) = notices_of(world, pod, T4, options, treatment)
        assert "does not count" in notice
        assert next(iter(metadata[next(iter(metadata))])) in notice
        assert requests_of(world.admitted(pod, T4, options, treatment))["0"].startswith("container=main\nmemory=1m")


def test_exempt_namespace_is_measured_and_not_capped(world: Any) -> None:
    pod = world.a_pod({"gpu-fraction": "0.996", OURS + "gpu-cores": "30"})
    after = world.admitted(world.after_kai(pod, hamicore=True), T4, None, "exempt")
    assert requests_of(after) == {"0": "container=main\nmemory=none\ndevices=1\n"}
    assert notices_of(world, pod, T4, None, "exempt") == []
    assert "CUDA_DEVICE_MEMORY_LIMIT" not in str(world.admitted(pod, T4, None, "exempt"))
    (limits,) = [volume for volume in after["spec"]["volumes"] if volume["name"] == "kai-resource-isolator-limits-0"]
    assert len(limits["projected"]["sources"]) == 1
    assert world.outcome_of(after, T4, None, "exempt").operations == []


def test_variables_that_would_outdo_the_limit_are_removed(world: Any) -> None:
    env = [
        {"name": "A", "value": "1"},
        {"name": "CUDA_DEVICE_MEMORY_LIMIT_0", "value": "99999m"},
        {"name": "CUDA_DEVICE_MEMORY_LIMIT_X", "value": "1"},
        {"name": "CUDA_DEVICE_MEMORY_LIMIT_15", "valueFrom": {"configMapKeyRef": {"name": "x", "key": "y"}}},
        {"name": "B", "value": "$(A)"},
    ]
    pod = world.a_pod({"gpu-memory": "1"}, containers=[{"name": "main", "env": env}, {"name": "side", "env": env}])
    first = notices_of(world, pod)
    assert len(first) == 2
    assert "CUDA_DEVICE_MEMORY_LIMIT_0" in first[0]
    assert "CUDA_DEVICE_MEMORY_LIMIT_15" in first[1]
    after = world.admitted(pod)
    names = [variable["name"] for variable in after["spec"]["containers"][0]["env"]]
    assert names[:3] == ["A", "CUDA_DEVICE_MEMORY_LIMIT_X", "B"]
    assert after["spec"]["containers"][1]["env"] == env
    again = world.admitted(after)
    assert again == after, "notices of an earlier pass stay"


def test_preset_variables_stay(world: Any) -> None:
    env = [{"name": "POD_UID", "value": "mine"}, {"name": "CONTAINER_NAME", "value": "mine"}]
    after = world.admitted(world.a_pod({"gpu-memory": "1"}, containers=[{"name": "main", "env": env}]))
    assert after["spec"]["containers"][0]["env"][:2] == env


@pytest.mark.parametrize(("choice", "result", "code"), [("deny", "failed", 500), ("warn", "failed_open", 200)])
def test_choice_at_a_fault_of_ours(
    world: Any, monkeypatch: pytest.MonkeyPatch, choice: Any, result: str, code: int
) -> None:
    def broken(*_arguments: Any) -> None:
        raise RuntimeError("not foreseen")

    monkeypatch.setattr("isolator_webhook.review.decide", broken)
    outcome = world.outcome_of(world.a_pod({"gpu-memory": "1"}), T4, Options(on_internal_error=choice))
    assert outcome.result == result
    told = outcome.message if code == 500 else outcome.notices[0]
    assert "internal error" in told
    assert "not foreseen" not in told
