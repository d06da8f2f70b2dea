"""Our declarations beside NVIDIA's headers: prototypes by the compiler, layouts by its offsets."""

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.fakegpu.machine import FOLDER
from tests.fakegpu.references import CUDA_WHEELS, cuda_headers, nvml_headers

from isolator_testing.debian import Unavailable
from isolator_testing.tools import require, skip_or_fail


@dataclass(frozen=True)
class Part:
    """One library's declarations and NVIDIA's header for them."""

    folder: Path
    header: str
    define: str


PARTS = {
    "cuda": Part(FOLDER / "src" / "cuda", "cuda.h", "-D__CUDA_API_VERSION_INTERNAL"),
    "nvml": Part(FOLDER / "src" / "nvml", "nvml.h", "-DNVML_NO_UNVERSIONED_FUNC_DEFS"),
}


def header_folder(part: str, version: str) -> Path:
    try:
        return cuda_headers(version) if part == "cuda" else nvml_headers(version)
    except Unavailable as reason:
        skip_or_fail(str(reason))


def prototypes(part: Part) -> dict[str, str]:
    text = re.sub(r"/\*.*?\*/", "", (part.folder / "prototypes.h").read_text(), flags=re.DOTALL)
    found = re.findall(r"^((?:CUresult|nvmlReturn_t|const char \*)\s*(\w+)\([^;]*\);)", text, re.MULTILINE)
    return {name: declaration for declaration, name in found}


def declared(part: Part, folder: Path) -> set[str]:
    """Names of functions that NVIDIA's header declares, under their linker names."""
    compiler = require("cc", package="gcc")
    done = subprocess.run(
        [compiler, "-E", "-P", part.define, f"-I{folder}", "-x", "c", "-"],
        input=f"#include <{part.header}>\n",
        capture_output=True,
        text=True,
        check=True,
    )
    return set(re.findall(r"\b(cu[A-Z]\w*|nvml[A-Z]\w*)\s*\(", done.stdout))


def compile_source(source: str, *flags: str) -> str:
    compiler = require("cc", package="gcc")
    done = subprocess.run(
        [compiler, "-std=gnu11", "-fsyntax-only", "-Werror", *flags, "-x", "c", "-"],
        input=source,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stderr


@pytest.mark.parametrize("version", CUDA_WHEELS)
@pytest.mark.parametrize("name", PARTS)
def test_prototypes_agree_with_nvidias(name: str, version: str) -> None:
    part = PARTS[name]
    folder = header_folder(name, version)
    known = declared(part, folder)
    ours = prototypes(part)
    assert len(ours) > 50
    source = f"#include <{part.header}>\n" + "\n".join(text for symbol, text in ours.items() if symbol in known)
    errors = compile_source(source, part.define, f"-I{folder}")
    assert errors == ""


def test_a_wrong_prototype_would_be_noticed() -> None:
    part = PARTS["cuda"]
    folder = header_folder("cuda", "12.9")
    wrong = "CUresult cuMemAlloc_v2(CUdeviceptr *address, int bytes);"
    errors = compile_source(f"#include <cuda.h>\n{wrong}", part.define, f"-I{folder}")
    assert "conflicting types" in errors


@pytest.mark.parametrize("name", PARTS)
def test_every_function_is_declared_by_some_version(name: str) -> None:
    part = PARTS[name]
    known: set[str] = set()
    for version in CUDA_WHEELS:
        known |= declared(part, header_folder(name, version))
    assert set(prototypes(part)) - known == set()


MEMBER = re.compile(r"^    [\w\s\*]+?\**(\w+)(?:\[[^\]]*\])*;", re.MULTILINE)


def structures(part: Part) -> dict[str, list[str]]:
    """Names of our structures, and of their outermost members."""
    text = "".join(file.read_text() for file in sorted(part.folder.glob("types*.h")))
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    found: dict[str, list[str]] = {}
    for body, alias in re.findall(r"^typedef (?:struct|union) \w+ \{\n(.*?)^\} (\w+)(?:, \w+)?;", text, re.M | re.S):
        flat = re.sub(r"^    (?:struct|union) \{.*?^    \} ?(\w*);", r"    int \1;", body, flags=re.M | re.S)
        found[alias] = [member for member in MEMBER.findall(flat) if member]
    return found


def layout(part: Part, shapes: dict[str, list[str]], include: str, *flags: str) -> dict[str, str]:
    """Size and offsets of each structure, or why the compiler does not know them."""
    compiler = require("cc", package="gcc")
    lines = [include, "#include <stddef.h>", "#include <stdio.h>", "int main(void) {"]
    for alias, members in shapes.items():
        offsets = ", ".join(f"(int)offsetof({alias}, {member})" for member in members)
        form = " ".join(f"{member}=%d" for member in members)
        lines.append(f'    printf("{alias} %d {form}\\n", (int)sizeof({alias}), {offsets});')
    lines.append("}")
    program = part.folder.parent.parent / "build" / "layout"
    done = subprocess.run(
        [compiler, "-std=gnu11", *flags, "-x", "c", "-", "-o", program],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    program.unlink()
    return {line.split()[0]: line for line in answer.splitlines()}


@pytest.mark.parametrize("name", PARTS)
def test_layouts_agree_with_nvidias_newest(name: str) -> None:
    part = PARTS[name]
    folder = header_folder(name, "13.5")
    shapes = structures(part)
    assert len(shapes) > 5
    ours = layout(part, shapes, f'#include "{part.folder}/types.h"')
    theirs = layout(part, shapes, f"#include <{part.header}>", part.define, f"-I{folder}")
    assert {key: (ours[key], theirs[key]) for key in ours if ours[key] != theirs[key]} == {}


@pytest.mark.parametrize("name", PARTS)
def test_enumerations_agree_with_nvidias_newest(name: str) -> None:
    part = PARTS[name]
    folder = header_folder(name, "13.5")
    text = "".join(file.read_text() for file in sorted(part.folder.glob("types*.h")))
    constants = [
        constant
        for body in re.findall(r"enum[^{;]*\{([^}]*)\}", text)
        for constant in re.findall(r"\b((?:CU|CUDA|NVML)_\w+) =", body)
    ]
    defs = (part.folder / "errors.def").read_text()
    prefix = "" if name == "cuda" else "NVML_"
    constants += [prefix + error for error in re.findall(r"^ERROR\(\d+, (\w+),", defs, re.MULTILINE)]
    attributes = part.folder / "device_attributes.def"
    if attributes.exists():
        found = re.findall(r"^ATTRIBUTE\(\d+, (\w+),", attributes.read_text(), re.MULTILINE)
        constants += [f"CU_DEVICE_ATTRIBUTE_{attribute}" for attribute in found]
    assert len(constants) > 30
    ours = (part.folder / "types.h").as_posix()
    values = [
        values_of(constants, f'#include "{ours}"'),
        values_of(constants, f"#include <{part.header}>", f"-I{folder}"),
    ]
    assert values[0] == values[1]


def values_of(constants: list[str], include: str, *flags: str) -> list[str]:
    """Preprocessed and evaluated by the compiler: one line a constant."""
    compiler = require("cc", package="gcc")
    lines = [f'    printf("{constant} %ld\\n", (long)({constant}));' for constant in constants]
    program = FOLDER / "build" / "constants"
    subprocess.run(
        [compiler, "-std=gnu11", *flags, "-x", "c", "-", "-o", program],
        input="\n".join([include, "#include <stdio.h>", "int main(void) {", *lines, "}"]),
        text=True,
        check=True,
    )
    answer = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    program.unlink()
    return answer.splitlines()
