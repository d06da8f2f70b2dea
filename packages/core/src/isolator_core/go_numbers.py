"""Numbers as Go reads them, because KAI and Kubernetes do: what one parser accepts and another refuses is a hole."""

import re
from fractions import Fraction

MOST_UINT64 = (1 << 64) - 1
MOST_INT64 = (1 << 63) - 1

_UINT = re.compile(r"[0-9]+", re.ASCII)
_DECIMAL_FLOAT = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?", re.ASCII)
_HEX_FLOAT = re.compile(r"[+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+", re.ASCII)
_SPECIAL_FLOAT = re.compile(r"[+-]?inf(?:inity)?|nan", re.ASCII | re.IGNORECASE)
_HEX_PREFIX = re.compile(r"[+-]?0[xX]")
_STRAY_UNDERSCORE = re.compile(r"(?<![0-9])_|_(?![0-9])", re.ASCII)
_STRAY_HEX_UNDERSCORE = re.compile(r"(?<![0-9a-fA-FxX])_|_(?![0-9a-fA-F])", re.ASCII)

_QUANTITY = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?([eEinumkKMGTP]*[+-]?[0-9]*)", re.ASCII)
_EXPONENT = re.compile(r"[eE]([+-]?[0-9]+)", re.ASCII)
_DECIMAL_SUFFIXES = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY_SUFFIXES = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_NANO = 10**9
# Beyond this many decimal places a quantity is only known to be huge, or next to nothing.
_MOST_PLACES = 100_000


def parse_uint(text: str) -> int | None:
    """Value of `strconv.ParseUint(text, 10, 64)`, None where it fails: ASCII digits only, no sign, no underscore."""
    if _UINT.fullmatch(text) is None or len(text.lstrip("0")) > 20:
        return None
    value = int(text.lstrip("0") or "0")
    return value if value <= MOST_UINT64 else None


def parse_float(text: str) -> float | None:
    """Value of `strconv.ParseFloat(text, 64)`, None where it fails, out of range included.

    Underscores may stand between digits, and after the prefix of a hexadecimal number.
    """
    stray = _STRAY_HEX_UNDERSCORE if _HEX_PREFIX.match(text) else _STRAY_UNDERSCORE
    if "_" in text and stray.search(text):
        return None
    plain = text.replace("_", "")
    if _SPECIAL_FLOAT.fullmatch(text):
        return float(text)
    if _HEX_FLOAT.fullmatch(plain):
        try:
            return float.fromhex(plain)
        except OverflowError:
            return None
    if _DECIMAL_FLOAT.fullmatch(plain):
        value = float(plain)
        return value if abs(value) != float("inf") else None
    return None


def _wrapped_int32(value: int) -> int:
    """Go's conversion of an int64 to int32."""
    return (value + (1 << 31)) % (1 << 32) - (1 << 31)


def _exponent(text: str) -> int | None:
    """Exponent of a quantity: read as an int64 and then cut to an int32, as `suffixHandler.interpret` does."""
    match = _EXPONENT.fullmatch(text)
    if match is None:
        return None
    digits = match[1].lstrip("+-").lstrip("0")
    if len(digits) > 19:
        return None
    value = int(digits or "0") * (-1 if match[1].startswith("-") else 1)
    return _wrapped_int32(value) if -(1 << 63) <= value <= MOST_INT64 else None


def parse_quantity(text: str) -> Fraction | None:
    """Value of `resource.ParseQuantity(text)` of Kubernetes' apimachinery, None where it fails.

    Rounded away from zero to a billionth, as there; binary quantities are capped at 2^63 - 1. A quantity of more than
    100,000 decimal places is None too: Go accepts it, but no resource can be meant.
    """
    match = _QUANTITY.fullmatch(text)
    if not text or match is None:
        return None
    sign, whole, decimals, suffix = match.groups(default="")
    number = int((whole + decimals) or "0") if len(whole) + len(decimals) <= 4300 else None
    if suffix in _BINARY_SUFFIXES:
        exponent, factor = -len(decimals), 1 << _BINARY_SUFFIXES[suffix]
    else:
        found = _DECIMAL_SUFFIXES.get(suffix, _exponent(suffix))
        if found is None:
            return None
        exponent, factor = found - len(decimals), 1
    if number is None or abs(exponent) > _MOST_PLACES:
        return None
    if not whole + decimals and (suffix in ("Pi", "Ei") or exponent < -9):
        # Without a digit Go takes the number as 0, but only where it computes with 64 bits.
        return None
    exact = number * factor * Fraction(10) ** exponent
    billionths = -((-exact * _NANO).__floor__())
    value = Fraction(billionths, _NANO)
    if suffix in _BINARY_SUFFIXES:
        value = min(value, Fraction(MOST_INT64))
    return -value if sign == "-" else value
