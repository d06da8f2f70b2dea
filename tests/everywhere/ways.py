"""The ways in which programs find CUDA's functions, and the programs that try them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

Compile = Callable[..., Path]


@dataclass(frozen=True)
class Way:
    """What a program does to find CUDA, the test program that does it, its arguments, and what must come of it."""

    name: str
    program: str
    arguments: tuple[str, ...]
    result: str = "capped"


DEEPBIND = "a plugin opened with RTLD_DEEPBIND"
DLVSYM = {"x86_64": "GLIBC_2.2.5", "aarch64": "GLIBC_2.17"}


def ways(machine: str, driver: str, *, glibc: bool = True) -> list[Way]:
    """All of them, for a machine and the path of its libcuda.so.1; without what only glibc has."""
    everywhere = [
        Way("linked with libcuda", "linked", ()),
        Way("dlopen and dlsym", "allocate", ("dlopen",)),
        Way("dlopen of an absolute path", "allocate", ("path", driver)),
        Way("dlclose, then dlopen again", "allocate", ("reopened",)),
        Way("dlsym of dlopen(NULL)", "allocate", ("main",)),
        Way("dlsym(RTLD_DEFAULT)", "allocate", ("RTLD_DEFAULT",)),
        Way("dlsym(RTLD_NEXT)", "allocate", ("RTLD_NEXT",)),
        Way("cuGetProcAddress", "allocate", ("cuGetProcAddress",)),
        Way("cuGetProcAddress_v2", "allocate", ("cuGetProcAddress_v2",)),
        Way("a plugin linked with libcuda", "host", ("plugin",)),
    ]
    only_glibc = [
        Way("an interposer that chains by dlvsym", "allocate", ("dlvsym", DLVSYM[machine])),
        Way("dlmopen", "allocate", ("dlmopen",)),
        Way(DEEPBIND, "host", ("plugin", "deepbind"), "not capped"),
    ]
    return everywhere + (only_glibc if glibc else [])


def compile_all(compile_program: Compile, gpu: Path) -> dict[str, Path]:
    """Build the programs with a function of (name, options…, build=…)."""
    linked = ("-DLINKED", f"-L{gpu}", "-l:libcuda.so.1")
    return {
        "allocate": compile_program("allocate", "-ldl", build="allocate"),
        "linked": compile_program("allocate", *linked, build="linked"),
        "host": compile_program("host", "-ldl", build="host"),
        "plugin": compile_program("allocate", "-DPLUGIN", "-shared", "-fPIC", *linked, build="plugin"),
    }


def command(way: Way, programs: dict[str, Path]) -> list[str]:
    return [str(programs[way.program]), *(str(programs.get(word, word)) for word in way.arguments)]
