"""The other ways to ask: annotations of one container, cores and priority, HAMi's resources; and several at once."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isolator_core import requests
from isolator_core.requests import WHOLE, Fraction, Memory, Origin, Pod, Request, RequestRefused, hami

CONTAINER = "nvidia.com/container."
OURS = "kai-resource-isolator.io/"


@dataclass(frozen=True)
class Named:
    name: str
    limits: Mapping[str, object] = field(default_factory=dict)


def pod(annotations: dict[str, str] | None = None, *containers: Named, init: tuple[Named, ...] = ()) -> Pod:
    return Pod(annotations or {}, init, containers or (Named("main"), Named("side")))


def refusal(asked: Pod) -> str:
    with pytest.raises(RequestRefused) as refused:
        requests.parse(asked)
    return str(refused.value)


def container_request(
    name: str, position: int, mib: int, *, init: bool = False, devices: int = 1, reserved: int | None = None
) -> Request:
    kept = None if reserved is None else Memory(reserved)
    return Request(name, position, init, Memory(mib), devices, Origin.CONTAINER, reserved=kept)


def test_any_number_of_containers_by_their_annotations() -> None:
    asked = pod(
        {
            f"{CONTAINER}side.gpu-memory.limit": "5Gi",
            f"{CONTAINER}side.gpu-memory.request": "4Gi",
            f"{CONTAINER}main.gpu-memory.request": "1500M",
            f"{CONTAINER}prepare.gpu-memory.limit": "1Mi",
        },
        init=(Named("prepare"),),
    )
    assert requests.parse(asked) == (
        container_request("prepare", 0, 1, init=True),
        container_request("main", 0, 1430),
        container_request("side", 1, 5120, reserved=4096),
    )


def test_the_number_of_devices_is_the_pods_or_what_kai_gave() -> None:
    asked = {f"{CONTAINER}main.gpu-memory.limit": "5Gi"}
    given = {f"{CONTAINER}main.gpus.devices": "GPU-1,k8s.device-plugin.nvidia.com/gpu=GPU-2"}
    assert requests.parse(pod(asked | given)) == (container_request("main", 0, 5120, devices=2),)
    number = {"gpu-fraction-num-devices": "3"}
    assert requests.parse(pod(asked | number)) == (container_request("main", 0, 5120, devices=3),)
    assert "fraction count" in refusal(pod(asked | {"gpu-fraction-num-devices": "0"}))


def test_a_fraction_stays_one_when_kai_has_written_the_bytes() -> None:
    bound = {f"{CONTAINER}main.gpu-memory.request": "7680Mi", f"{CONTAINER}main.gpus.devices": "GPU-1"}
    half = Request("main", 0, False, Fraction("0.5", 0.5), 1, Origin.KAI)
    assert requests.parse(pod({"gpu-fraction": "0.5"} | bound)) == (half,)
    asked = pod({"gpu-fraction": "0.5", f"{CONTAINER}main.gpu-memory.request": "7680Mi"})
    assert "container main is asked for twice" in refusal(asked)


def test_annotations_of_a_container_beside_whole_gpus() -> None:
    asked = pod({f"{CONTAINER}main.gpu-memory.limit": "5Gi"}, Named("main"), Named("side", {"nvidia.com/gpu": "1"}))
    assert refusal(asked) == "cannot have both GPU fraction request and whole GPU resource request/limit"


PORTION = "kai.scheduler/container.main.gpu-memory.portion.limit"


@pytest.mark.parametrize(
    "limits",
    [
        {PORTION: "0.8"},
        {"gpu-fraction.limit": "0.8"},
        {PORTION: "0.80000"},
        {PORTION: "0.8", "gpu-fraction.limit": "0.8"},
    ],
)
def test_a_portion_above_the_fraction(limits: dict[str, str]) -> None:
    (request,) = requests.parse(pod({"gpu-fraction": "0.5"} | limits))
    assert (request.memory, request.reserved) == (Fraction("0.8", 0.8), Fraction("0.5", 0.5))
    assert request.guaranteed == Fraction("0.5", 0.5)


def test_a_portion_of_the_named_container() -> None:
    named = {"gpu-fraction": "0.5", "gpu-fraction-container-name": "side"}
    (request,) = requests.parse(pod(named | {PORTION.replace("main", "side"): "0.6"}))
    assert (request.container, request.memory) == ("side", Fraction("0.6", 0.6))
    assert "container name main does not match" in refusal(pod(named | {PORTION: "0.6"}))


@pytest.mark.parametrize(
    ("annotations", "words"),
    [
        ({PORTION: "0.5"}, ["0.5", "must be greater than gpu-fraction annotation value (0.5)"]),
        ({PORTION: "0.4"}, ["must be greater"]),
        ({PORTION: "1.0"}, ["must be a positive number smaller than 1.0"]),
        ({PORTION: "NaN"}, ["must be a positive number smaller than 1.0"]),
        ({PORTION: ""}, ["must be a positive number smaller than 1.0"]),
        ({PORTION: "0.812345"}, ["at most 5 digits"]),
        ({"gpu-fraction.limit": "0.4"}, ["gpu-fraction.limit", "must be greater"]),
        ({"gpu-fraction.limit": "0.8", PORTION: "0.80"}, ["gpu-fraction.limit annotation conflicts with", PORTION]),
        ({PORTION.replace("main", "other"): "0.8"}, ["container name other does not match"]),
        ({"gpu-memory.limit": "8Gi"}, ["gpu-memory.limit", "together with the gpu-memory annotation"]),
    ],
)
def test_wrong_limits_above_a_fraction(annotations: dict[str, str], words: list[str]) -> None:
    message = refusal(pod({"gpu-fraction": "0.5"} | annotations))
    for word in words:
        assert word in message


@pytest.mark.parametrize("key", [PORTION, "gpu-fraction.limit"])
@pytest.mark.parametrize("asked", [{"gpu-memory": "1024"}, {f"{CONTAINER}main.gpu-memory.limit": "1Gi"}])
def test_a_limit_of_a_portion_takes_a_fraction(key: str, asked: dict[str, str]) -> None:
    assert "can only be used together with the gpu-fraction annotation" in refusal(pod(asked | {key: "0.8"}))


@pytest.mark.parametrize("key", [PORTION, "gpu-fraction.limit", "gpu-memory.limit"])
def test_a_limit_beside_resources_is_refused(key: str) -> None:
    """Else it would come to count when the resources have become KAI's annotations."""
    asked = pod({key: "0.8"}, Named("main", {"nvidia.com/gpumem": "1"}))
    assert "can only be used together with" in refusal(asked)


@pytest.mark.parametrize("key", [PORTION, "gpu-fraction.limit", "gpu-memory.limit", f"{CONTAINER}main.gpus.devices"])
def test_a_limit_alone_asks_for_nothing(key: str) -> None:
    assert requests.parse(pod({key: "0.8"})) == ()


def test_memory_above_the_request() -> None:
    (request,) = requests.parse(pod({"gpu-memory": "4096", "gpu-memory.limit": "8Gi"}))
    assert (request.memory, request.reserved) == (Memory(8192), Memory(4096))
    # As KAI's admission leaves it.
    normalised = {f"{CONTAINER}main.gpu-memory.request": "4Gi", f"{CONTAINER}main.gpu-memory.limit": "8Gi"}
    assert requests.parse(pod({"gpu-memory": "4096", "gpu-memory.limit": "8Gi"} | normalised)) == (request,)
    message = refusal(pod({"gpu-memory": "4096"} | normalised))
    assert "4096 MiB on 1 devices" in message
    assert "8192 MiB, 4096 MiB of it reserved, on 1 devices" in message
    (equal,) = requests.parse(pod({"gpu-memory": "4096", "gpu-memory.limit": "4Gi"}))
    assert (equal.memory, equal.reserved) == (Memory(4096), None)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("8192", "with a unit"), ("8e9", "with a unit"), ("x", "with a unit"), ("-8Gi", "with a unit"),
        ("", "with a unit"),
        ("4095Mi", "must not be smaller than gpu-memory annotation value (4096 MiB)"), ("4G", "must not be smaller"),
    ],
)  # fmt: skip
def test_wrong_limits_above_memory(text: str, words: str) -> None:
    assert words in refusal(pod({"gpu-memory": "4096", "gpu-memory.limit": text}))


@pytest.mark.parametrize(
    ("annotations", "words"),
    [
        ({"main.gpu-memory.limit": "5"}, ["main.gpu-memory.limit", "'5'", "5Gi"]),
        ({"main.gpu-memory.limit": "x"}, ["'x'"]),
        ({"main.gpu-memory.limit": "-5Gi"}, ["'-5Gi'"]),
        ({"main.gpu-memory.limit": "1e20"}, ["'1e20'"]),
        ({"main.gpu-memory.request": ""}, ["main.gpu-memory.request", "''"]),
        ({"main.gpu-memory.request": "2Gi", "main.gpu-memory.limit": "1Gi"}, ["request", "'2Gi'", "at most", "'1Gi'"]),
        ({"other.gpu-memory.limit": "1Gi"}, ["other.gpu-memory.limit", "'other'", "main, side"]),
        ({".gpu-memory.limit": "1Gi"}, ["container..gpu-memory.limit is '1Gi'", "container.NAME.gpu-memory.limit"]),
        ({"gpu-memory.request": "1"}, ["container.gpu-memory.request is '1'", "container.NAME.gpu-memory.request"]),
    ],
)
def test_wrong_annotations_of_a_container(annotations: dict[str, str], words: list[str]) -> None:
    message = refusal(pod({CONTAINER + key: value for key, value in annotations.items()}))
    for word in words:
        assert word in message


@pytest.mark.parametrize("key", ["main.gpu-compute.mode", "main.gpu-memory"])
def test_annotations_that_ask_for_nothing(key: str) -> None:
    assert requests.parse(pod({CONTAINER + key: "1Gi"})) == ()


def test_both_forms_of_kai_for_one_container_must_agree() -> None:
    both = {"gpu-memory": "5120", f"{CONTAINER}main.gpu-memory.request": "5Gi"}
    (request,) = requests.parse(pod(both))
    assert (request.memory, request.origin) == (Memory(5120), Origin.KAI)
    message = refusal(pod(both | {f"{CONTAINER}main.gpu-memory.request": "4Gi"}))
    for word in ("container main", "5120 MiB", "4096 MiB"):
        assert word in message
    assert len(requests.parse(pod({"gpu-memory": "5120", f"{CONTAINER}side.gpu-memory.limit": "1Gi"}))) == 2


@pytest.mark.parametrize(
    "annotations", [{"gpu-memory": "1024"}, {"gpu-fraction": "0.5"}, {f"{CONTAINER}side.gpu-memory.limit": "1Gi"}]
)
def test_cores_and_priority_beside_a_share(annotations: dict[str, str]) -> None:
    (plain,) = requests.parse(pod(annotations))
    assert (plain.cores, plain.priority) == (None, None)
    (request,) = requests.parse(pod(annotations | {f"{OURS}gpu-cores": "30", f"{OURS}priority": "0"}))
    assert (request.cores, request.priority) == (30, 0)
    assert (request.container, request.memory) == (plain.container, plain.memory)


@pytest.mark.parametrize(
    ("annotations", "words"),
    [
        ({f"{OURS}gpu-cores": "0"}, ["gpu-cores", "'0'", "1 to 100"]),
        ({f"{OURS}gpu-cores": "101"}, ["gpu-cores", "'101'"]),
        ({f"{OURS}gpu-cores": "30%"}, ["gpu-cores", "'30%'"]),
        ({f"{OURS}priority": "2"}, ["priority", "'2'", "0 to 1"]),
        ({f"{OURS}priority": ""}, ["priority", "''"]),
    ],
)
def test_wrong_cores_and_priority(annotations: dict[str, str], words: list[str]) -> None:
    message = refusal(pod({"gpu-memory": "1"} | annotations))
    for word in words:
        assert word in message


def test_cores_that_could_mean_more_than_one_container() -> None:
    message = refusal(
        pod(
            {
                f"{OURS}gpu-cores": "30",
                f"{CONTAINER}main.gpu-memory.limit": "1Gi",
                f"{CONTAINER}side.gpu-memory.limit": "1Gi",
            }
        )
    )
    assert "gpu-cores is given in a pod in which 2 containers ask" in message


def test_cores_without_a_gpu() -> None:
    assert "0 containers ask" in refusal(pod({f"{OURS}gpu-cores": "30"}))


def test_cores_on_whole_gpus() -> None:
    asked = pod({f"{OURS}gpu-cores": "30"}, Named("main", {"nvidia.com/gpu": "2"}), Named("side"))
    assert requests.parse(asked) == (Request("main", 0, False, WHOLE, 2, Origin.CORES, cores=30),)


@pytest.mark.parametrize("limits", [{"nvidia.com/gpu": "1"}, {"nvidia.com/gpu": "1", "nvidia.com/priority": "1"}, {}])
def test_whole_gpus_ask_for_no_share(limits: dict[str, str]) -> None:
    assert requests.parse(pod({}, Named("main", limits))) == ()


@pytest.mark.parametrize(
    ("limits", "memory", "devices", "cores", "priority"),
    [
        ({"gpumem": "4096"}, Memory(4096), 1, None, None),
        ({"gpu": 2, "gpumem": 4096}, Memory(4096), 2, None, None),
        ({"gpumem": "4k"}, Memory(4000), 1, None, None),
        ({"gpumem-percentage": "30"}, Fraction("0.3", 0.3), 1, None, None),
        ({"gpumem-percentage": "100"}, WHOLE, 1, None, None),
        ({"gpu": "1", "gpucores": "30"}, WHOLE, 1, 30, None),
        ({"gpu": "1", "gpumem": "1", "gpucores": "100", "priority": "0"}, Memory(1), 1, 100, 0),
        ({"gpumem": "1", "gpucores": "0"}, Memory(1), 1, None, None),
    ],
)
def test_resources(
    limits: dict[str, object], memory: Memory | Fraction, devices: int, cores: int | None, priority: int | None
) -> None:
    asked = pod({}, Named("side"), Named("main", {f"nvidia.com/{key}": value for key, value in limits.items()}))
    assert requests.parse(asked) == (Request("main", 1, False, memory, devices, Origin.HAMI, cores, priority),)


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"gpumem": "0"}, ["nvidia.com/gpumem", "'0'", "MiB"]),
        ({"gpumem": "1.5"}, ["nvidia.com/gpumem", "'1.5'"]),
        ({"gpumem": "x"}, ["nvidia.com/gpumem", "'x'"]),
        ({"gpumem-percentage": "0"}, ["nvidia.com/gpumem-percentage", "'0'", "1 to 100"]),
        ({"gpumem-percentage": "101"}, ["'101'"]),
        ({"gpumem-percentage": "50", "gpumem": "1"}, ["gpumem", "gpumem-percentage", "one of them"]),
        ({"gpucores": "101"}, ["nvidia.com/gpucores", "'101'"]),
        ({"gpumem": "1", "gpu": "0"}, ["nvidia.com/gpu", "'0'"]),
        ({"gpumem": "1", "priority": "2"}, ["nvidia.com/priority", "'2'"]),
    ],
)
def test_wrong_resources(limits: dict[str, object], words: list[str]) -> None:
    message = refusal(pod({}, Named("main", {f"nvidia.com/{key}": value for key, value in limits.items()})))
    assert "container main" in message
    for word in words:
        assert word in message


def test_resources_beside_annotations_are_refused() -> None:
    limited = Named("main", {"nvidia.com/gpumem": "1"})
    for annotations in ({"gpu-memory": "1"}, {f"{CONTAINER}main.gpu-memory.limit": "1Gi"}):
        message = refusal(pod(annotations, limited))
        assert "container main" in message
        assert "HAMi's resources" in message


def test_cores_beside_resources() -> None:
    limited = Named("main", {"nvidia.com/gpumem": "1", "nvidia.com/gpucores": "30"})
    assert requests.parse(pod({f"{OURS}gpu-cores": "30"}, limited))[0].cores == 30
    assert "30" in refusal(pod({f"{OURS}gpu-cores": "40"}, limited))
    assert "priority" in refusal(
        pod({f"{OURS}priority": "0"}, Named("main", {"nvidia.com/gpumem": "1", "nvidia.com/priority": "1"}))
    )


def test_names_of_resources_are_a_choice() -> None:
    names = hami.resource_names(["example.com/gpu", "example.com/gpumem"])
    assert names.listed() == ["example.com/gpu", "example.com/gpumem"]
    limited = Named("main", {"example.com/gpumem": "7", "nvidia.com/gpumem": "9", "nvidia.com/gpucores": "9"})
    assert requests.parse(pod({}, limited), names)[0].memory == Memory(7)
    assert requests.parse(pod({}, limited), hami.resource_names([])) == ()


@pytest.mark.parametrize(
    ("names", "word"),
    [
        (["nvidia.com/memory"], "'nvidia.com/memory'"),
        (["gpumem"], "'gpumem'"),
        ([" nvidia.com/gpumem"], "' nvidia.com/gpumem'"),
        (["a,b/gpumem"], "'a,b/gpumem'"),
        (["a/gpu", "b/gpu"], "'b/gpu'"),
        ([""], "''"),
    ],
)
def test_wrong_names_of_resources(names: list[str], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        hami.resource_names(names)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "nvidia.com/gpu": st.integers(0, 3),
            "nvidia.com/gpumem": st.integers(0, 10**6),
            "nvidia.com/gpumem-percentage": st.integers(0, 101),
            "nvidia.com/gpucores": st.integers(0, 101),
            "nvidia.com/priority": st.integers(0, 2),
        },
    ),
    st.booleans(),
)
def test_annotations_of_kai_say_the_same_as_the_resources(limits: dict[str, int], init: bool) -> None:
    named = Named("main", {key: str(value) for key, value in limits.items()})
    asked = Pod({}, (named,) if init else (), (Named("first"),) if init else (Named("first"), named))
    try:
        found = requests.parse(asked)
    except RequestRefused:
        return
    for request in found:
        annotations = hami.kai_annotations(request)
        assert (annotations == {}) == (request.memory == WHOLE)
        if annotations:
            bare = Pod(annotations, (Named("main"),) if init else (), (Named("first"), Named("main")))
            (again,) = requests.parse(bare)
            assert (again.container, again.init, again.memory, again.devices) == (
                request.container,
                request.init,
                request.memory,
                request.devices,
            )
