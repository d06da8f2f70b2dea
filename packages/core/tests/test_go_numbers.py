"""Numbers as Go reads them, the corners. `tests/go-grammar` asks Go itself."""

from fractions import Fraction

import pytest

from isolator_core.go_numbers import parse_float, parse_quantity, parse_uint


@pytest.mark.parametrize(
    ("text", "value"),
    [("0", 0), ("007", 7), ("18446744073709551615", 2**64 - 1), ("18446744073709551616", None), ("", None),
     ("+1", None), ("1_0", None), ("٣", None), ("1 ", None), ("0" * 5000 + "1", 1)],
)  # fmt: skip
def test_uint(text: str, value: int | None) -> None:
    assert parse_uint(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e400", None), ("1e-400", 0.0), ("0x1p-1", 0.5), ("0x1", None), ("1_0.5", 10.5), ("0x_1p0", 1.0), ("1__0", None),
     ("+nan", None), ("-inf", float("-inf")), ("in_f", None), ("0x1p9999", None), (" 1", None), ("٣", None)],
)  # fmt: skip
def test_float(text: str, value: float | None) -> None:
    assert parse_float(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("4Gi", 4 << 30), ("1.5Gi", 3 << 29), ("100M", 10**8), ("1e3", 1000), ("1e4294967297", 10), ("8Ei", 2**63 - 1),
     ("1n", Fraction(1, 10**9)), ("0.1n", Fraction(1, 10**9)), ("-1", -1), ("Gi", 0), ("Ei", None), ("", None),
     ("1K", None), ("4GiB", None), ("0x1", None), ("1e999999999", None), ("1e9223372036854775808", None)],
)  # fmt: skip
def test_quantity(text: str, value: int | None) -> None:
    assert parse_quantity(text) == value
