"""cuGetProcAddress, beside NVIDIA's own drivers: every name, version and flag."""

import ctypes
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.fakegpu.machine import FOLDER, LIBRARIES, Machine, make_machine
from tests.fakegpu.references import DRIVER_SUITES, driver_library
from tests.fakegpu.tests.test_exports import exports

from isolator_testing.debian import Unavailable
from isolator_testing.tools import skip_or_fail

CUDA_OF_DRIVER = {"535": "12.2", "550": "12.4"}
FUNCTION_NOT_TOUCHED = 0x1234

PROBE = """
import ctypes, json, sys
path, exported, asked = json.load(sys.stdin)
library = ctypes.CDLL(path)
library.cuInit(0)
symbols = {}
for name in exported:
    symbols[ctypes.cast(getattr(library, name), ctypes.c_void_p).value] = name
answers = {}
for name, versions in asked.items():
    for flags in (0, 1, 2, 3, 4):
        for version in versions:
            for call in ("cuGetProcAddress", "cuGetProcAddress_v2"):
                pointer, status = ctypes.c_void_p(0x1234), ctypes.c_int(77)
                more = (ctypes.byref(status),) if call.endswith("v2") else ()
                code = getattr(library, call)(
                    name.encode(), ctypes.byref(pointer), version, ctypes.c_uint64(flags), *more
                )
                found = symbols.get(pointer.value, pointer.value)
                answers[f"{call} {name} {version} {flags}"] = [code, status.value, found]
json.dump(answers, sys.stdout)
"""


def base_names(symbols: set[str]) -> set[str]:
    names = set(symbols)
    for symbol in symbols:
        while (shorter := re.sub(r"(_ptsz|_ptds|_v\d+)$", "", symbol)) != symbol:
            names.add(shorter)
            symbol = shorter
    return names


def versions_of(name: str) -> list[int]:
    """Where our table says that the name changes, just before and after, a driver's whole range and beyond."""
    text = (FOLDER / "src" / "cuda" / "api.def").read_text()
    since = {int(version) for version in re.findall(rf"^\w+\({name}, (\d+),", text, re.MULTILINE)}
    near = {version + step for version in since for step in (-1, 0, 1)}
    return sorted(near | {-1, 0, 3020, 7000, 11030, 12000, 12010, 12040, 13000, 99999})


def ask(library: Path, asked: dict[str, list[int]], known: set[str], environment: dict[str, str]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", PROBE],
        input=json.dumps([str(library), sorted(known), asked]),
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("driver", DRIVER_SUITES)
def test_every_look_up_answers_as_nvidias_driver(driver: str, tmp_path: Path) -> None:
    try:
        real = driver_library(driver, "libcuda.so")
    except Unavailable as reason:
        skip_or_fail(str(reason))
    machine = make_machine(tmp_path, cuda=CUDA_OF_DRIVER[driver])
    real_exports = {name for name in exports(real) if name.startswith("cu") and not name.startswith("cudbg")}
    names = base_names(real_exports) | {"cuNothing", "", "cuMemAlloc_v99"}
    asked = {name: versions_of(name) for name in sorted(names)}
    environment = machine.environment()
    theirs = ask(real, asked, real_exports, environment)
    ours = ask(LIBRARIES / "libcuda.so.1", asked, real_exports, environment)
    assert len(theirs) > 70000
    assert {key: (answer, ours[key]) for key, answer in theirs.items() if ours[key] != answer} == {}


def test_a_driver_does_not_know_what_is_newer(tmp_path: Path) -> None:
    for cuda, status in (("12.4", 1), ("12.5", 0)):
        machine = make_machine(tmp_path, cuda=cuda)
        with machine.process() as process:
            process.run("ok(d.cuInit(0))")
            assert process.run("int(d.cuGetProcAddress(b'cuKernelGetLibrary', 13000, 0)[2])") == status


def test_functions_that_are_not_modelled_say_so(machine: Machine) -> None:
    source = (
        "import ctypes; library = ctypes.CDLL('libcuda.so.1'); "
        "print(library.cuGLInit(), library.cuInit(0), library.cuGLInit())"
    )
    done = subprocess.run(
        [sys.executable, "-c", source], env=machine.environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout == "3 0 801\n"


def test_error_names_and_texts_are_nvidias(machine: Machine) -> None:
    try:
        real = ctypes.CDLL(str(driver_library("550", "libcuda.so")))
    except Unavailable as reason:
        skip_or_fail(str(reason))
    with machine.process() as process:
        for code in range(1000):
            for call in ("cuGetErrorName", "cuGetErrorString"):
                text = ctypes.c_char_p()
                result = getattr(real, call)(code, ctypes.byref(text))
                process.send(
                    "import ctypes; text = ctypes.c_char_p(); "
                    f"result = ctypes.CDLL('libcuda.so.1').{call}({code}, ctypes.byref(text))"
                )
                process.receive()
                assert process.run("result, text.value and text.value.decode()") == [
                    result,
                    text.value and text.value.decode(),
                ]
