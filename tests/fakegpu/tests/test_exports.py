"""What the libraries export and how they are linked, beside NVIDIA's own."""

import re
import subprocess
from pathlib import Path

import pytest
from tests.fakegpu.machine import FOLDER, LIBRARIES
from tests.fakegpu.references import DRIVER_SUITES, driver_library

from isolator_testing.debian import Unavailable
from isolator_testing.tools import require, skip_or_fail

NAMES = {"cuda": "libcuda.so", "nvml": "libnvidia-ml.so"}
DEBUGGER = re.compile("cudbg")  # hooks of NVIDIA's debugger, which the fake does not have


def exports(library: Path) -> set[str]:
    nm = require("nm", package="binutils")
    done = subprocess.run([nm, "-D", "--defined-only", library], capture_output=True, text=True, check=True)
    return {line.split()[-1] for line in done.stdout.splitlines()}


def table(part: str) -> list[str]:
    text = (FOLDER / "src" / part / "api.def").read_text()
    return re.findall(r"^(?:API|NOT_MODELLED).*[(, ](\w+)\)$", text, re.MULTILINE)


@pytest.mark.parametrize("part", NAMES)
def test_exports_are_the_table_and_nothing_else(part: str) -> None:
    names = table(part)
    assert len(names) == len(set(names))
    assert exports(LIBRARIES / f"{NAMES[part]}.1") == set(names)


@pytest.mark.parametrize("driver", DRIVER_SUITES)
@pytest.mark.parametrize("part", NAMES)
def test_what_nvidias_driver_exports_is_there(part: str, driver: str) -> None:
    try:
        real = driver_library(driver, NAMES[part])
    except Unavailable as reason:
        skip_or_fail(str(reason))
    assert {name for name in exports(real) - set(table(part)) if not DEBUGGER.match(name)} == set()


@pytest.mark.parametrize("name", NAMES.values())
def test_linked_as_the_driver_is(name: str) -> None:
    readelf = require("readelf", package="binutils")
    library = LIBRARIES / f"{name}.1"
    dynamic = subprocess.run([readelf, "-dV", library], capture_output=True, text=True, check=True).stdout
    assert "SYMBOLIC" in dynamic
    assert f"soname: [{name}.1]" in dynamic
    assert "Version definition section" not in dynamic
    assert "GLIBC_PRIVATE" not in dynamic
