"""KAI's arithmetic, value by value."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isolator_core import portion

# gpu-memory in MiB -> (portion, limit in MiB), a row a node label. Worked out from KAI's formulas.
TABLE = {
    15360: {
        100: ("0.01", 153),
        1024: ("0.07", 1075),
        2048: ("0.14", 2150),
        4096: ("0.27", 4147),
        8192: ("0.54", 8294),
        10240: ("0.67", 10291),
    },
    16384: {
        100: ("0.01", 163),
        1024: ("0.07", 1146),
        2048: ("0.13", 2129),
        4096: ("0.26", 4259),
        8192: ("0.51", 8355),
        10240: ("0.63", 10321),
    },
    24564: {
        100: ("0.01", 245),
        1024: ("0.05", 1228),
        2048: ("0.09", 2210),
        4096: ("0.17", 4175),
        8192: ("0.34", 8351),
        10240: ("0.42", 10316),
    },
    40960: {
        100: ("0.01", 409),
        1024: ("0.03", 1228),
        2048: ("0.06", 2457),
        4096: ("0.11", 4505),
        8192: ("0.21", 8601),
        10240: ("0.26", 10649),
    },
    81559: {
        100: ("0.01", 815),
        1024: ("0.02", 1631),
        2048: ("0.03", 2446),
        4096: ("0.06", 4893),
        8192: ("0.11", 8971),
        10240: ("0.13", 10602),
    },
    143771: {
        100: ("0.01", 1437),
        1024: ("0.01", 1437),
        2048: ("0.02", 2875),
        4096: ("0.03", 4313),
        8192: ("0.06", 8626),
        10240: ("0.08", 11501),
    },
}
FLOORED = {15360: 15300, 16384: 16300, 24564: 24500, 40960: 40900, 81559: 81500, 143771: 143700}
FRACTIONS = {
    0.5: ("0.50", 7680),
    0.333: ("0.33", 5068),
    0.335: ("0.34", 5222),
    0.125: ("0.12", 1843),
    0.995: ("0.99", 15206),
    0.996: ("1.00", 15360),
    0.999: ("1.00", 15360),
    0.004: ("0.00", 0),
    0.0049: ("0.00", 0),
    1e-3: ("0.00", 0),
}


@pytest.mark.parametrize(
    ("label", "memory", "text", "limit"),
    [(label, memory, *worked) for label, row in TABLE.items() for memory, worked in row.items()],
)
def test_memory_becomes_portion_and_limit(label: int, memory: int, text: str, limit: int) -> None:
    found = portion.portion_text(portion.portion_of_memory(memory, portion.floored_card_mib(label)))
    assert (found, portion.limit_mib(label, found)) == (text, limit)


@pytest.mark.parametrize(("fraction", "text", "limit"), [(key, *worked) for key, worked in FRACTIONS.items()])
def test_fraction_becomes_portion_and_limit(fraction: float, text: str, limit: int) -> None:
    assert portion.portion_text(fraction) == text
    assert portion.limit_mib(15360, text) == limit


@pytest.mark.parametrize(("label", "floored"), [*FLOORED.items(), (None, 100), (0, 100), (-5, 100), (99, 0)])
def test_card_is_floored_to_a_hundred(label: int | None, floored: int) -> None:
    assert portion.floored_card_mib(label) == floored


def test_label_in_bytes_is_read_by_the_scheduler_and_not_by_the_binder() -> None:
    label = 15360 * 1024 * 1024
    assert portion.floored_card_mib(label) == 15300
    assert portion.floored_card_mib(1048575) == 1048500
    assert portion.floored_card_mib(1048576) == 0
    assert portion.limit_mib(label, "0.27") == int(label * 0.27)


def test_ceiling_is_taken_on_float64() -> None:
    assert 1071 * 100 == 7 * 15300
    assert portion.portion_of_memory(1071, 15300) == 0.08


@pytest.mark.parametrize(("memory", "fits"), [(15300, True), (15301, False), (15360, False)])
def test_memory_fits_up_to_the_floored_card(memory: int, fits: bool) -> None:
    assert portion.fits_card(portion.portion_of_memory(memory, portion.floored_card_mib(15360))) is fits


def test_nothing_fits_a_card_floored_to_nothing() -> None:
    assert not portion.fits_card(portion.portion_of_memory(1, 0))


@given(st.sampled_from(sorted(TABLE)), st.data())
def test_limit_of_a_memory_request_is_never_below_it(label: int, data: st.DataObject) -> None:
    card = portion.floored_card_mib(label)
    memory = data.draw(st.integers(1, card))
    assert portion.limit_mib(label, portion.portion_text(portion.portion_of_memory(memory, card))) >= memory
