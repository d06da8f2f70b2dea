"""KAI's annotations of a pod: every way to ask by them, and every way to ask wrongly."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isolator_core import requests
from isolator_core.requests import Fraction, Memory, Pod, RequestRefused


@dataclass(frozen=True)
class Named:
    name: str
    limits: Mapping[str, object] = field(default_factory=dict)


ONE = (Named("main"),)
NO_MEMORY = "gpu-memory annotation value must be a positive integer greater than 0"
NO_FRACTION = "gpu-fraction annotation value must be a positive number smaller than 1.0"
NO_COUNT = "fraction count annotation value must be a positive integer greater than 0"


def not_a_quantity(value: str) -> str:
    return (
        "gpu-fraction annotation value must be a float written with a decimal point or a scientific notation "
        f".given value: {value}"
    )


def one(annotations: dict[str, str]) -> requests.Request:
    (request,) = requests.parse(Pod(annotations, (), ONE))
    return request


def refusal(annotations: dict[str, str], init: tuple[Named, ...] = (), regular: tuple[Named, ...] = ONE) -> str:
    with pytest.raises(RequestRefused) as refused:
        requests.parse(Pod(annotations, init, regular))
    return str(refused.value)


@pytest.mark.parametrize(
    ("text", "mib"), [("4096", 4096), ("0100", 100), ("1", 1), ("18446744073709551615", 18446744073709551615)]
)
def test_memory(text: str, mib: int) -> None:
    assert one({"gpu-memory": text}).memory == Memory(mib)


@pytest.mark.parametrize(
    "text",
    [
        "4Gi",
        "4096m",
        " 4096",
        "4096 ",
        "1e3",
        "+5",
        "-1",
        "",
        "0",
        "000",
        "18446744073709551616",
        "4_096",
        "0x10",
        "４０",
    ],
)
def test_memory_refused(text: str) -> None:
    assert refusal({"gpu-memory": text}) == NO_MEMORY


@pytest.mark.parametrize(
    ("text", "decimal"),
    [
        ("0.5", "0.5"),
        (".5", "0.5"),
        ("5e-1", "0.5"),
        ("50E-2", "0.5"),
        ("+0.25", "0.25"),
        ("0.250", "0.25"),
        ("1e-9", "0.000000001"),
        ("0.3333333333333333333333333", "0.3333333333333333"),
        ("0.1", "0.1"),
        ("0.999999999999999", "0.999999999999999"),
    ],
)
def test_fraction(text: str, decimal: str) -> None:
    memory = one({"gpu-fraction": text}).memory
    assert memory == Fraction(decimal, float(text))
    assert float(decimal) == float(text)


@pytest.mark.parametrize(
    "text",
    [
        "Inf",
        "inf",
        "-Infinity",
        "1",
        "1.0",
        "0",
        "-0.1",
        "50%",
        "",
        "0.5m",
        "500m",
        " 0.5",
        "0,5",
        "1e400",
        "0.5_",
        "e",
    ],
)
def test_fraction_refused_as_a_number(text: str) -> None:
    assert refusal({"gpu-fraction": text}) == NO_FRACTION


@pytest.mark.parametrize("text", ["NaN", "nan", "0x1p-1", "0X.8P0", "0.5_0"])
def test_fraction_refused_as_a_quantity(text: str) -> None:
    assert refusal({"gpu-fraction": text}) == not_a_quantity(text)


@pytest.mark.parametrize(("text", "devices"), [("1", 1), ("2", 2), ("007", 7)])
def test_devices(text: str, devices: int) -> None:
    request = one({"gpu-memory": "1024", "gpu-fraction-num-devices": text})
    assert (request.devices, request.memory) == (devices, Memory(1024))


@pytest.mark.parametrize("text", ["0", "", "two", "-1", "1.0"])
def test_devices_refused(text: str) -> None:
    assert refusal({"gpu-fraction": "0.5", "gpu-fraction-num-devices": text}) == NO_COUNT


WHOLE = (Named("main", {"nvidia.com/gpu": "0"}),)


@pytest.mark.parametrize(
    ("annotations", "init", "regular", "reason"),
    [
        ({"gpu-fraction-num-devices": "2", "mps": "true"}, (), ONE, "MPS is only supported with GPU fraction request"),
        (
            {"gpu-fraction": "bad", "gpu-memory": "bad"},
            (),
            WHOLE,
            "cannot have both GPU fraction request and whole GPU resource request/limit",
        ),
        (
            {"gpu-fraction": "0.5"},
            WHOLE,
            ONE,
            "cannot have both GPU fraction request and whole GPU resource request/limit",
        ),
        ({"gpu-fraction": "bad", "gpu-memory": "bad"}, (), ONE, "cannot request both GPU and GPU memory"),
        ({"gpu-memory": "bad"}, (), WHOLE, "cannot request both GPU and GPU memory"),
        (
            {"gpu-fraction-num-devices": "bad"},
            (),
            ONE,
            "cannot request multiple fractional devices without specifying fraction portion or gpu-memory",
        ),
        ({"gpu-memory": "bad", "gpu-fraction-num-devices": "bad"}, (), ONE, NO_MEMORY),
        ({"gpu-fraction": "bad", "gpu-fraction-num-devices": "bad"}, (), ONE, NO_FRACTION),
        (
            {"gpu-fraction": "0.5", "gpu-fraction-num-devices": "bad", "gpu-fraction-container-name": "x"},
            (),
            ONE,
            NO_COUNT,
        ),
        (
            {"gpu-fraction": "0.5", "gpu-fraction-container-name": "x"},
            (),
            ONE,
            "failed to get fraction container ref: container with name x not found for fraction request",
        ),
    ],
)
def test_checks_come_in_order(
    annotations: dict[str, str], init: tuple[Named, ...], regular: tuple[Named, ...], reason: str
) -> None:
    assert refusal(annotations, init, regular) == reason


def test_mps_with_a_share_is_accepted() -> None:
    assert one({"gpu-fraction": "0.5", "mps": "true"}).memory == Fraction("0.5", 0.5)


@pytest.mark.parametrize(
    ("name", "expected"),
    [(None, ("main", 0, False, "0")), ("side", ("side", 1, False, "1")), ("both", ("both", 1, True, "i1"))],
)
def test_fraction_container(name: str | None, expected: tuple[str, int, bool, str]) -> None:
    annotations = {"gpu-memory": "1"} | ({} if name is None else {"gpu-fraction-container-name": name})
    (request,) = requests.parse(
        Pod(annotations, (Named("prepare"), Named("both")), (Named("main"), Named("side"), Named("both")))
    )
    assert (request.container, request.position, request.init, request.index) == expected


def test_a_pod_without_containers_is_refused() -> None:
    assert "spec.containers" in refusal({"gpu-memory": "1"}, (), ())


@pytest.mark.parametrize("annotations", [{}, {"gpu-fraction-container-name": "main"}, {"mps": "true"}, {"other": "1"}])
def test_no_request(annotations: dict[str, str]) -> None:
    assert requests.parse(Pod(annotations, (), WHOLE)) == ()


@given(st.sampled_from(["gpu-memory", "gpu-fraction"]), st.text(), st.none() | st.text())
def test_any_text_is_read_or_refused(key: str, value: str, devices: str | None) -> None:
    annotations = {key: value} | ({} if devices is None else {"gpu-fraction-num-devices": devices})
    try:
        found = requests.parse(Pod(annotations, (), ONE))
    except RequestRefused as refused:
        found = (str(refused),)
    assert len(found) == 1


@given(st.floats(min_value=0, max_value=1, exclude_min=True, exclude_max=True))
def test_fraction_is_kept_to_the_last_bit(value: float) -> None:
    memory = one({"gpu-fraction": repr(value)}).memory
    assert isinstance(memory, Fraction)
    assert memory.value == value
    assert float(memory.decimal) == value
