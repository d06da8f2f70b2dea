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


def container_request(name: str, position: int, mib: int, *, init: bool = False, devices: int = 1) -> Request:
    return Request(name, position, init, Memory(mib), devices, Origin.CONTAINER)


def test_any_number_of_containers_by_their_annotations() -> None:
    asked = pod(
        {
            f"{CONTAINER}side.gpu-memory.limit": "5Gi",
            f"{CONTAINER}side.gpu-memory.request": "4Gi",
            f"{CONTAINER}side.gpus.devices": "2",
            f"{CONTAINER}main.gpu-memory.request": "1500M",
            f"{CONTAINER}prepare.gpu-memory.limit": "1Mi",
        },
        init=(Named("prepare"),),
    )
    assert requests.parse(asked) == (
        container_request("prepare", 0, 1, init=True),
        container_request("main", 0, 1430),
        container_request("side", 1, 5120, devices=2),
    )


@pytest.mark.parametrize(
    ("annotations", "words"),
    [
        ({"main.gpu-memory.limit": "5"}, ["main.gpu-memory.limit", "'5'", "5Gi"]),
        ({"main.gpu-memory.limit": "x"}, ["'x'"]),
        ({"main.gpu-memory.limit": "-5Gi"}, ["'-5Gi'"]),
        ({"main.gpu-memory.limit": "1e20"}, ["'1e20'"]),
        ({"main.gpu-memory.request": ""}, ["main.gpu-memory.request", "''"]),
        ({"main.gpu-memory.request": "2Gi", "main.gpu-memory.limit": "1Gi"}, ["request", "'2Gi'", "at most", "'1Gi'"]),
        ({"main.gpus.devices": "2"}, ["main.gpus.devices", "alone", "main.gpu-memory.limit"]),
        ({"main.gpu-memory.limit": "1Gi", "main.gpus.devices": "0"}, ["main.gpus.devices", "'0'"]),
        ({"other.gpu-memory.limit": "1Gi"}, ["other.gpu-memory.limit", "'other'", "main, side"]),
    ],
)
def test_wrong_annotations_of_a_container(annotations: dict[str, str], words: list[str]) -> None:
    message = refusal(pod({CONTAINER + key: value for key, value in annotations.items()}))
    for word in words:
        assert word in message


@pytest.mark.parametrize("key", ["main.gpu-compute.mode", "gpu-memory.limit", "main.gpu-memory", ".gpu-memory.limit"])
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
