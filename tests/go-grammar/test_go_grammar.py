"""Numbers mean to us what they mean to Go: every verdict and every value, on a hundred thousand strings."""

import itertools
import json
import random
import re
import struct
import subprocess
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from isolator_core.go_numbers import MOST_INT64, parse_float, parse_quantity, parse_uint
from isolator_testing import tools

HERE = Path(__file__).parent
COUNT = 100_000
WAIT_SECONDS = 600
# Go multiplies out such an exponent of ten, which takes it minutes; those that are listed it cuts to 32 bits first.
LONG_WORK = re.compile(r".*[eE][+-]?[0-9]{5,}", re.DOTALL)

LISTED = [
    "", "0", "00", "4096", "0100", "4Gi", "4096m", " 4096", "4096 ", "1e3", "+5", "-1", "18446744073709551615",
    "18446744073709551616", "00000000000000000000000018446744073709551615", "0.5", ".5", "5.", "5e-1", "1e-9", "NaN",
    "nan", "+nan", "Inf", "-inf", "+Infinity", "infinit", "1", "1.0", "-0.1", "50%", "0x1p-1", "0X.8P0", "0x1",
    "0x_1p0", "0x1_0p0", "0x1p99999999999999999999", "0x0p99999999999999999999", "0x1p-99999999999999999999",
    "0.5m", "500m",
    "1_0.5", "0.5_0", "0._5", "0_.5", "1e1_0", "1e_1", "_1", "1_", "1__0", "1e400", "-1e400", "1e-400", "1e", "e1",
    "E1", "1E", "1E1", "1Ei", "8Ei", "7Ei", "-9Ei", "1.5Gi", ".Gi", "Gi", "+", "-", ".", "-.", "+.5",
    "-.5Mi", "1n", "0.1n",
    "1u", "1k", "1K", "1Ki", "1ki", "1M", "1G", "1T", "1P", "1E5", "1e4294967296", "1e4294967297", "1e-4294967297",
    "1e9223372036854775807", "1e9223372036854775808", "1e+5", "1e-5", "1e+", "0.0000000001", "123456789012345678901",
    "12345678901234567890Ki", "0.1234567890123456789Gi", "1.2345678901", "0.1e1k", "1 ", "٣", "４", "0b1", "0o7", "1,5",
]  # fmt: skip
ALPHABETS = [
    "0123456789",
    "0123456789.eE+-",
    "01.eE+-_xXpPaAfF",
    "0123456789.numkKMGTPEie+-",
    "infatyINFATY+-",
    "0 ٣\t",
]


def made(chosen: random.Random) -> str:
    """One string: an edit of a listed one, letters of one alphabet, a float, or a quantity."""
    kind = chosen.random()
    if kind < 0.4:
        text = chosen.choice(LISTED)
        position = chosen.randint(0, len(text))
        edit = chosen.choice(chosen.choice(ALPHABETS))
        return text[:position] + edit + text[position + chosen.randint(0, 1) :]
    if kind < 0.7:
        return "".join(chosen.choices(chosen.choice(ALPHABETS), k=chosen.randint(1, 24)))
    if kind < 0.85:
        return repr(struct.unpack("<d", chosen.randbytes(8))[0])
    suffix = chosen.choice(["", "m", "Mi", "Gi", "G", "e3", "E-2", "Ki", "n"])
    whole, decimals = (chosen.randint(0, 10 ** chosen.randint(1, most)) for most in (25, 12))
    return f"{whole}.{decimals}{suffix}"


def strings() -> Iterator[str]:
    """Strings without end, the listed ones first: the same on every run."""
    yield from LISTED
    chosen = random.Random(4096)
    while True:
        text = made(chosen)
        if not LONG_WORK.match(text):
            yield text


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, Any]]:
    go = tools.require("go", package="golang-go")
    program = tmp_path_factory.mktemp("go") / "go-grammar"
    subprocess.run([go, "build", "-buildvcs=false", "-o", program, "."], cwd=HERE, check=True, timeout=WAIT_SECONDS)
    texts = list(itertools.islice(strings(), COUNT))
    questions = "".join(json.dumps(text) + "\n" for text in texts)
    done = subprocess.run([program], input=questions, capture_output=True, text=True, check=True, timeout=WAIT_SECONDS)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(texts) == COUNT
    return list(zip(texts, answers, strict=True))


def differing(verdicts: list[tuple[str, Any]], ours: Callable[[str], object], go: Callable[[Any], object]) -> list[Any]:
    found = [(text, ours(text), go(answer)) for text, answer in verdicts]
    assert any(answer is not None for _, _, answer in found)
    assert any(answer is None for _, _, answer in found)
    return [case for case in found if case[1] != case[2]]


def test_parse_uint(verdicts: list[tuple[str, Any]]) -> None:
    def go(answer: Any) -> int | None:
        return None if answer["uint"] is None else int(answer["uint"])

    assert differing(verdicts, parse_uint, go) == []


def test_parse_float(verdicts: list[tuple[str, Any]]) -> None:
    def ours(text: str) -> str | None:
        value = parse_float(text)
        if value is None:
            return None
        return "nan" if value != value else struct.pack(">d", value).hex()

    def go(answer: Any) -> str | None:
        return "nan" if answer["float"] == "7ff8000000000001" else answer["float"]

    assert differing(verdicts, ours, go) == []


def test_parse_quantity(verdicts: list[tuple[str, Any]]) -> None:
    def go(answer: Any) -> Fraction | None:
        if answer["unscaled"] is None or abs(answer["scale"]) > 100_000:
            return None
        return Fraction(int(answer["unscaled"])) / Fraction(10) ** int(answer["scale"])

    assert differing(verdicts, parse_quantity, go) == []


def test_value_of_a_quantity_is_its_ceiling(verdicts: list[tuple[str, Any]]) -> None:
    checked = 0
    for text, answer in verdicts:
        value = parse_quantity(text)
        if value is not None and 0 <= value <= MOST_INT64 and answer["value"] is not None:
            assert value.__ceil__() == answer["value"], text
            checked += 1
    assert checked > 1000
