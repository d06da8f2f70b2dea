"""The library and the services read the `request` file alike: every verdict and value, on fifty thousand files."""

import random
import subprocess
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest

from isolator_core import request_file
from isolator_testing import tools

HERE = Path(__file__).parent
LIBRARY = HERE.parents[1] / "native" / "hami-core" / "src"
COUNT = 50_000
WAIT_SECONDS = 300
KINDS = {"memory": 0, "fraction": 1, "none": 2}

KEYS = [
    "container",
    "memory",
    "fraction",
    "at-most",
    "devices",
    "cores",
    "priority",
    "region",
    "colour",
    "Memory",
    "",
    "memory ",
]
MIB = ["1m", "4096m", "007m", "17592186044415m", "none", "0m", "17592186044416m", "m", "1", " 1m", "1 m", "+1m"]
FRACTIONS = [
    "0.25", ".5", "1.0", "00.5", "0.3333333333333333", "0.000000000000000001", "0.9999999999999999999999",
    "1.0000000000000000000001", "1.1", "0.0", "0.0000000000000000001", "5.", ".", "5e-1", "-0.5", "1",
]  # fmt: skip
NUMBERS = ["1", "0", "2", "30", "100", "007", "101", "18446744073709551615", "18446744073709551616", "-1", "+1", "1.0"]
VOLUMES = ["hostPath", "emptyDir", "hostpath", "", "host", "hostPath "]
NAMES = ["main", "a-b", "a" * 63, "-", "Main", "a" * 64, "a_b"]
ODD = ["", "=", "a=b", "é", "\x00", "\t", "none"]
FITTING = {"container": NAMES, "memory": MIB, "at-most": MIB, "fraction": FRACTIONS, "region": VOLUMES}
ENDS = ["\n", "\n", "\n", "\r\n", "\n\n", " \n", ""]


def line(chosen: random.Random, key: str) -> str:
    """A line, its value mostly of the kind that the key wants, and of those mostly a good one."""
    values = ODD if chosen.random() < 0.03 else FITTING.get(key, NUMBERS)
    position = min(int(chosen.expovariate(0.4)), len(values) - 1)
    return f"{key}={values[position]}"


def files() -> Iterator[str]:
    """Mostly files that are nearly right: the same on every run."""
    chosen = random.Random(4096)
    while True:
        lines = [line(chosen, "container"), line(chosen, chosen.choice(["memory", "fraction"]))]
        lines += [line(chosen, chosen.choice(KEYS[3:])) for _ in range(chosen.randint(0, 3))]
        if chosen.random() < 0.1:
            lines[chosen.randrange(len(lines))] = chosen.choice(["", "memory", "\t", line(chosen, "memory")])
        if chosen.random() < 0.2:
            chosen.shuffle(lines)
        yield "".join(one + (chosen.choice(ENDS) if chosen.random() < 0.1 else "\n") for one in lines)


def ours(text: str) -> str:
    """What `isolator_core` makes of a file, as the library's program prints it."""
    try:
        found = request_file.parse(text)
    except request_file.RequestFileInvalid:
        return "-"
    digits, places = 0, 0
    if found.fraction is not None:
        whole, _, rest = found.fraction.partition(".")
        exact = Fraction(int((whole + rest[:18]) or "0"), 10 ** len(rest[:18]))
        while (exact * 10**places).denominator != 1:
            places += 1
        digits = int(exact * 10**places)
    kind = KINDS["none" if found.exempt else "memory" if found.fraction is None else "fraction"]
    cores = 100 if found.cores is None else found.cores
    priority = 1 if found.priority is None else found.priority
    numbers = (kind, found.memory_mib or 0, digits, places, found.at_most_mib or 0, found.devices, cores, priority)
    mounted = int(found.region == "hostPath")
    return " ".join(map(str, (found.container, *numbers, mounted)))


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("request-file") / "request-file"
    compiler = tools.require("cc", package="gcc")
    sources = [HERE / "main.c", *(LIBRARY / f"{name}.c" for name in ("request", "text", "kai"))]
    command: list[str | Path] = [
        compiler,
        "-std=c11",
        "-D_GNU_SOURCE",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-I",
        LIBRARY,
        "-o",
        built,
        *sources,
    ]
    subprocess.run(command, check=True, timeout=WAIT_SECONDS)
    return built


def test_every_file_is_read_alike(program: Path) -> None:
    stream = files()
    texts = [next(stream) for _ in range(COUNT)]
    contents = [text.encode() for text in texts]
    given = b"".join(b"%d\n%s" % (len(content), content) for content in contents)
    done = subprocess.run([program], input=given, capture_output=True, check=True, timeout=WAIT_SECONDS)
    verdicts = done.stdout.decode().splitlines()
    assert len(verdicts) == COUNT
    found = [(text, ours(text), verdict) for text, verdict in zip(texts, verdicts, strict=True)]
    assert sum(verdict == "-" for verdict in verdicts) > COUNT / 10
    assert sum(verdict != "-" for verdict in verdicts) > COUNT / 10
    assert [case for case in found if case[1] != case[2]] == []
