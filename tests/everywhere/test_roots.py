"""The shipped library in real root file systems, with programs built for the oldest C library and for a new one."""

import json
import re
import shutil
from pathlib import Path

import pytest
from tests.everywhere import bindings, builds, compatibility
from tests.everywhere.container import Ended
from tests.everywhere.roots import (
    MUSL,
    SYSTEMS,
    Root,
    debian_root,
    libc_root,
    put_driver,
    put_library,
    try_ways,
)
from tests.everywhere.ways import DEEPBIND

from isolator_testing import debian
from isolator_testing.tools import require_root, skip_or_fail

NEW = "gnu.2.36"
KINDS = {
    builds.OLDEST: "programs built for glibc 2.17",
    NEW: "programs built for glibc 2.36",
    "musl": "programs for musl",
}


def _check(request: pytest.FixtureRequest, root: Root, system: str, kind: str, results: dict[str, str]) -> None:
    write = bool(request.config.getoption("--write-compatibility", default=False))
    compatibility.check(f"{root.machine}, {kind}", system, results, write=write)


@pytest.fixture(scope="module", params=SYSTEMS)
def system(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Root]:
    require_root()
    try:
        root = debian_root(tmp_path_factory.mktemp("root") / request.param, request.param)
    except debian.Unavailable as reason:
        skip_or_fail(str(reason))
    put_library(root.folder, root.machine)
    put_driver(root.folder / "usr/lib/x86_64-linux-gnu", builds.fakegpu(root.machine))
    return request.param, root


@pytest.mark.roots
@pytest.mark.root
def test_memory_is_capped_for_old_programs(request: pytest.FixtureRequest, system: tuple[str, Root]) -> None:
    suite, root = system
    results = try_ways(root, builds.OLDEST, builds.OLDEST, "/usr/lib/x86_64-linux-gnu")
    _check(request, root, SYSTEMS[suite], KINDS[builds.OLDEST], results)


@pytest.mark.roots
@pytest.mark.root
def test_memory_is_capped_for_new_programs(request: pytest.FixtureRequest, system: tuple[str, Root]) -> None:
    suite, root = system
    if suite == "bullseye":
        pytest.skip("programs built for glibc 2.36 do not start on 2.31")
    results = try_ways(root, builds.OLDEST, NEW, "/usr/lib/x86_64-linux-gnu")
    _check(request, root, SYSTEMS[suite], KINDS[NEW], results)


@pytest.mark.roots
@pytest.mark.root
@pytest.mark.parametrize("suite", bindings.PYTHON)
def test_memory_is_capped_for_the_python_bindings(request: pytest.FixtureRequest, tmp_path: Path, suite: str) -> None:
    require_root()
    try:
        root = debian_root(tmp_path / "root", suite, "python3")
        client = bindings.folder(suite)
    except debian.Unavailable as reason:
        skip_or_fail(str(reason))
    shutil.copytree(client, root.folder / "usr/lib/python3/dist-packages", dirs_exist_ok=True)
    put_driver(root.folder / "usr/lib/x86_64-linux-gnu", builds.fakegpu(root.machine))
    program = ("/usr/bin/python3", "-W", "error", "-c", bindings.PROGRAM)
    results = {}
    for way, environment in bindings.ways(suite).items():
        assert root.run(*program, environment=environment) == Ended(0, "not capped\n", "")
        put_library(root.folder, root.machine)
        ended = root.run(*program, environment=environment)
        assert (ended.status, ended.output) == (0, "capped\n"), ended
        shutil.rmtree(root.folder / "usr/local/vgpu")
        (root.folder / "etc/ld.so.preload").unlink()
        results[way] = "capped"
    _check(request, root, SYSTEMS[suite], "NVIDIA's Python bindings", results)


@pytest.mark.roots
@pytest.mark.root
@pytest.mark.parametrize(
    "program",
    [
        ("/bin/true",),
        ("/bin/sh", "-c", "echo $0 $(id -u); exit 3"),
        ("/usr/bin/env",),
        ("/usr/bin/perl", "-e", "print qx(ls /), $?"),
        ("/usr/bin/apt-get", "--version"),
        ("/usr/bin/dpkg", "--print-architecture"),
        ("/bin/sed", "-n", "1p", "/nonexistent"),
        ("/bin/su", "-", "nobody", "-s", "/bin/sh", "-c", "env | sort; id -u"),
    ],
    ids=lambda program: program[0],
)
def test_ordinary_programs_end_as_without_the_library(system: tuple[str, Root], program: tuple[str, ...]) -> None:
    _, root = system
    preload = root.folder / "etc/ld.so.preload"
    preloaded = root.run(*program)
    text = preload.read_text()
    preload.unlink()
    try:
        assert root.run(*program) == preloaded
    finally:
        preload.write_text(text)


@pytest.mark.roots
@pytest.mark.root
def test_a_setuid_program_is_preloaded_as_the_loader_rules_and_runs(system: tuple[str, Root]) -> None:
    _, root = system
    setuid = root.folder / "opt/id"
    setuid.parent.mkdir(exist_ok=True)
    shutil.copy(root.folder / "usr/bin/id", setuid)
    setuid.chmod(0o4755)
    as_nobody = ("/usr/bin/setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    ended = root.run(*as_nobody, "/opt/id", "-u")
    assert (ended.status, ended.output, ended.errors) == (0, "0\n", "")


@pytest.mark.root
def test_a_tree_with_one_static_program_needs_nothing_of_the_library(tmp_path: Path) -> None:
    require_root()
    root = Root(tmp_path / "root", "x86_64")
    (root.folder / "proc").mkdir(parents=True)
    put_library(root.folder, "x86_64")
    program = builds.program("empty_main", "x86_64", "-static", build="static", libc="musl")
    shutil.copy(program, root.folder / "program")
    assert root.run("/program") == Ended(9, "", "")
    # There is no loader that the library could name.
    assert root.run("/usr/local/vgpu/libvgpu.so").status == 127


@pytest.mark.root
@pytest.mark.parametrize("suite", SYSTEMS)
def test_memory_is_capped_where_there_is_one_program_and_its_c_library(tmp_path: Path, suite: str) -> None:
    require_root()
    root = _libc_root(tmp_path, "x86_64", suite)
    results = try_ways(root, builds.OLDEST, builds.OLDEST, "/usr/lib/x86_64-linux-gnu")
    assert set(results.values()) == {"capped", "not capped"}
    assert [way for way, result in results.items() if result == "not capped"] == [DEEPBIND]


@pytest.mark.root
@pytest.mark.parametrize("suite", SYSTEMS)
def test_a_directory_in_place_of_the_library_is_named_by_the_loader(tmp_path: Path, suite: str) -> None:
    """Runtimes make one where a mount's source is missing. Nothing of ours runs then; the monitor finds it."""
    require_root()
    root = _libc_root(tmp_path, "x86_64", suite)
    library = root.folder / "usr/local/vgpu/libvgpu.so"
    (root.folder / "opt").mkdir()
    for name in ("empty_main", "allocate"):
        shutil.copy(builds.program(name, "x86_64", "-ldl", build="directory"), root.folder / "opt" / name)
    assert root.run("/opt/empty_main") == Ended(9, "", "")
    library.unlink()
    library.mkdir()
    ended = root.run("/opt/empty_main")
    assert (ended.status, ended.output) == (9, "")
    assert re.fullmatch(
        r"ERROR: ld\.so: object '/usr/local/vgpu/libvgpu\.so' from /etc/ld\.so\.preload cannot be preloaded "
        r"\(.*\): ignored\.\n",
        ended.errors,
    )
    assert root.run("/opt/allocate", "dlopen").output == "not capped\n"


@pytest.mark.root
@pytest.mark.parametrize("suite", SYSTEMS)
def test_a_directory_in_place_of_the_preload_file_changes_nothing(tmp_path: Path, suite: str) -> None:
    require_root()
    root = _libc_root(tmp_path, "x86_64", suite)
    preload = root.folder / "etc/ld.so.preload"
    preload.unlink()
    preload.mkdir()
    (root.folder / "opt").mkdir()
    shutil.copy(builds.program("empty_main", "x86_64", "-ldl", build="directory"), root.folder / "opt/program")
    assert root.run("/opt/program") == Ended(9, "", "")
    asked = root.run("/usr/local/vgpu/libvgpu.so", "--json")
    told = json.loads(asked.output)
    assert (asked.status, told["managed"], told["preloaded_by"]) == (3, True, None)


@pytest.mark.root
@pytest.mark.parametrize(
    ("suite", "program_libc"),
    [(suite, libc) for suite in SYSTEMS for libc in (builds.OLDEST, NEW) if (suite, libc) != ("bullseye", NEW)],
)
def test_memory_is_capped_on_aarch64(
    request: pytest.FixtureRequest, tmp_path: Path, suite: str, program_libc: str
) -> None:
    require_root()
    root = _libc_root(tmp_path, "aarch64", suite)
    results = try_ways(root, builds.OLDEST, program_libc, "/usr/lib/aarch64-linux-gnu")
    _check(request, root, SYSTEMS[suite], KINDS[program_libc], results)


def _libc_root(tmp_path: Path, machine: str, suite: str) -> Root:
    try:
        root = libc_root(tmp_path / "root", machine, suite)
    except debian.Unavailable as reason:
        skip_or_fail(str(reason))
    put_library(root.folder, machine)
    put_driver(root.folder / f"usr/lib/{machine}-linux-gnu", builds.fakegpu(machine))
    return root


@pytest.mark.root
@pytest.mark.parametrize("suite", MUSL)
@pytest.mark.parametrize("machine", builds.MACHINES)
def test_memory_is_capped_under_musl(request: pytest.FixtureRequest, tmp_path: Path, machine: str, suite: str) -> None:
    """musl reads no /etc/ld.so.preload, so an image's own LD_PRELOAD does it here."""
    require_root()
    try:
        root = libc_root(tmp_path / "root", machine, suite, "musl")
    except debian.Unavailable as reason:
        skip_or_fail(str(reason))
    put_library(root.folder, machine)
    put_driver(root.folder / f"lib/{machine}-linux-musl", builds.fakegpu(machine, "musl"))
    results = try_ways(
        root, "musl", "musl", f"/lib/{machine}-linux-musl", environment={"LD_PRELOAD": "/usr/local/vgpu/libvgpu.so"}
    )
    _check(request, root, MUSL[suite], KINDS["musl"], results)
