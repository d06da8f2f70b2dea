"""The shipped library beside other interposers, and in programs that are instrumented."""

from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.everywhere import builds
from tests.everywhere.container import Container, machine_gpu

from isolator_testing import debian
from isolator_testing.tools import require, skip_or_fail


@dataclass(frozen=True)
class Instrumented:
    """A way to build a program, and what it needs in its environment to start."""

    compiler: str
    options: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()


# The runtime of a shared ASan demands to be loaded first, whatever is preloaded.
LATE_ASAN = (("ASAN_OPTIONS", "verify_asan_link_order=0"),)
INSTRUMENTED = {
    "gcc, AddressSanitizer": Instrumented("gcc", ("-fsanitize=address", "-static-libasan")),
    "gcc, AddressSanitizer, shared": Instrumented("gcc", ("-fsanitize=address",), LATE_ASAN),
    "gcc, ThreadSanitizer": Instrumented("gcc", ("-fsanitize=thread",)),
    "gcc, UndefinedBehaviorSanitizer": Instrumented("gcc", ("-fsanitize=undefined",)),
    "gcc, LeakSanitizer": Instrumented("gcc", ("-fsanitize=leak",)),
    "gcc, -pg": Instrumented("gcc", ("-pg",)),
    "gcc, --coverage": Instrumented("gcc", ("--coverage",)),
    "clang, AddressSanitizer": Instrumented("clang", ("-fsanitize=address",)),
    "clang, AddressSanitizer, shared": Instrumented("clang", ("-fsanitize=address", "-shared-libasan"), LATE_ASAN),
    "clang, MemorySanitizer": Instrumented("clang", ("-fsanitize=memory",)),
    "clang, ThreadSanitizer": Instrumented("clang", ("-fsanitize=thread",)),
    "clang, UndefinedBehaviorSanitizer": Instrumented("clang", ("-fsanitize=undefined",)),
    "clang, LeakSanitizer": Instrumented("clang", ("-fsanitize=leak",)),
}


def _compile(kind: Instrumented, folder: Path, *options: str) -> Path:
    compiler = str(require(kind.compiler, package=kind.compiler))
    return builds.compiled([compiler], "allocate", *kind.options, *options, folder=folder)


@pytest.mark.parametrize("name", INSTRUMENTED)
@pytest.mark.parametrize("way", ["linked", "dlopen", "cuGetProcAddress_v2"])
def test_instrumented_programs_run_and_are_capped(container: Container, tmp_path: Path, name: str, way: str) -> None:
    kind = INSTRUMENTED[name]
    gpu = machine_gpu()
    linked = ("-DLINKED", f"-L{gpu}", "-l:libcuda.so.1") if way == "linked" else ()
    program = _compile(kind, tmp_path / "build", *linked)
    runtime = ":".join(str(path.parent) for path in Path("/usr/lib/llvm-14/lib").glob("clang/*/lib/linux/*asan*.so"))
    ended = container.run(
        "sh", "-c", 'cd "$0" && exec "$@"', tmp_path, program, way,
        LD_LIBRARY_PATH=f"{gpu}:{runtime}", **dict(kind.environment),
    )  # fmt: skip
    assert (ended.output, ended.status) == ("capped\n", 0), ended.errors


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_a_shared_asan_runtime_says_what_to_do(container: Container, tmp_path: Path, compiler: str) -> None:
    """It refuses every preloaded library, ours too; this is the documented way out's reason."""
    kind = INSTRUMENTED[f"{compiler}, AddressSanitizer, shared"]
    program = _compile(kind, tmp_path / "build")
    runtime = ":".join(str(path.parent) for path in Path("/usr/lib/llvm-14/lib").glob("clang/*/lib/linux/*asan*.so"))
    ended = container.run(program, "dlopen", LD_LIBRARY_PATH=f"{machine_gpu()}:{runtime}")
    assert ended.status == 1
    assert "ASan runtime does not come first" in ended.errors


NEIGHBOURS = {
    "jemalloc": ("libjemalloc2", "libjemalloc.so.2"),
    "tcmalloc": ("libtcmalloc-minimal4", "libtcmalloc_minimal.so.4"),
    "libfaketime": ("libfaketime", "libfaketime.so.1"),
}
ORDERS = {"before": "{other} {ours}", "behind": "{ours} {other}"}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", NEIGHBOURS)
@pytest.mark.parametrize("way", ["dlopen", "RTLD_DEFAULT", "cuGetProcAddress_v2", "dlmopen"])
def test_other_preloaded_libraries_live_beside_ours(container: Container, name: str, order: str, way: str) -> None:
    package, file = NEIGHBOURS[name]
    try:
        files = debian.packages(package, "libstdc++6", "libgcc-s1", suite="bookworm")
    except debian.Unavailable as reason:
        skip_or_fail(str(reason))
    other = next(files.rglob(file))
    libraries = f"{machine_gpu()}:{files / 'usr/lib/x86_64-linux-gnu'}:{files / 'lib/x86_64-linux-gnu'}"
    program = builds.program("allocate", "x86_64", "-ldl", build="allocate")
    preload = ORDERS[order].format(other=other, ours=container.library)
    ended = container.run(program, way, preload=preload, LD_LIBRARY_PATH=libraries, FAKETIME="+0")
    assert (ended.output, ended.status) == ("capped\n", 0), ended.errors


@pytest.mark.parametrize("way", ["dlopen", "RTLD_DEFAULT", "RTLD_NEXT", "cuGetProcAddress_v2", "dlmopen"])
def test_an_auditor_changes_nothing(container: Container, tmp_path: Path, way: str) -> None:
    compiler = str(require("gcc", package="gcc"))
    audit = builds.compiled([compiler], "audit", "-shared", "-fPIC", folder=tmp_path / "build")
    program = builds.program("allocate", "x86_64", "-ldl", build="allocate")
    ended = container.run(program, way, LD_AUDIT=str(audit))
    assert (ended.output, ended.status) == ("capped\n", 0), ended.errors
