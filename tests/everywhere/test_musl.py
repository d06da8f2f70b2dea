"""The shipped library under musl: ordinary programs end as without it, and what cannot be capped there is said."""

import json
import shutil
from pathlib import Path

import pytest
from tests.everywhere import builds, musl
from tests.everywhere.container import LIMIT_MIB
from tests.everywhere.roots import Root, libc_root, put_driver, put_library

from isolator_testing import debian
from isolator_testing.tools import require_root, skip_or_fail

LIBRARY = "/usr/local/vgpu/libvgpu.so"
PRELOADED = {"LD_PRELOAD": LIBRARY}
GAP = "reads no /etc/ld.so.preload"


def _root(folder: Path, machine: str, suite: str = "bookworm") -> Root:
    """A tree with musl, the library and its limit."""
    require_root()
    try:
        root = libc_root(folder, machine, suite, "musl")
    except debian.Unavailable as reason:
        skip_or_fail(str(reason))
    put_library(root.folder, machine)
    return root


def _put(root: Root, program: Path) -> str:
    (root.folder / "opt").mkdir(exist_ok=True)
    shutil.copy(program, root.folder / "opt" / program.name)
    return f"/opt/{program.name}"


@pytest.fixture
def capped(tmp_path: Path, machine: str) -> tuple[Root, str]:
    """A tree with a card, and a program that takes its memory."""
    root = _root(tmp_path / "root", machine)
    put_driver(root.folder / f"lib/{machine}-linux-musl", builds.fakegpu(machine, "musl"))
    return root, _put(root, builds.program("allocate", machine, "-ldl", build="allocate", libc="musl"))


@pytest.mark.root
@pytest.mark.parametrize("machine", builds.MACHINES)
def test_what_passes_by_is_said_once_in_a_container(capped: tuple[Root, str]) -> None:
    root, program = capped
    first, second = (root.run(program, "dlopen", environment=PRELOADED) for _ in range(2))
    assert (first.status, first.output, second.output) == (0, "capped\n", "capped\n"), (first, second)
    assert [line for line in first.errors.splitlines() if GAP in line] == [
        f"libvgpu: the C library of this program {GAP}: programs of this container that are started without LD_PRELOAD="
        f"{LIBRARY}, with a cleared environment or setuid, are not held to its GPU memory limit"
    ]
    assert GAP not in second.errors
    passes_by = root.run(program, "dlopen")
    assert (passes_by.output, passes_by.errors) == ("not capped\n", "")


@pytest.mark.root
@pytest.mark.parametrize("machine", ["x86_64"])
@pytest.mark.parametrize(
    "variables",
    [{"LIBCUDA_LOG_LEVEL": "1"}, {"CUDA_DEVICE_MEMORY_LIMIT": f"{LIMIT_MIB}m"}],
    ids=["errors alone", "not managed"],
)
def test_is_not_said_where_nobody_asked_for_it(capped: tuple[Root, str], variables: dict[str, str]) -> None:
    root, program = capped
    if "CUDA_DEVICE_MEMORY_LIMIT" in variables:
        shutil.rmtree(root.folder / "usr/local/vgpu/limits")
        (root.folder / "tmp").mkdir()
    ended = root.run(program, "dlopen", environment=PRELOADED | variables)
    assert (ended.status, ended.output) == (0, "capped\n"), ended.errors
    assert GAP not in ended.errors


@pytest.mark.root
@pytest.mark.parametrize("machine", ["x86_64"])
def test_programs_that_the_loader_was_given_by_name(capped: tuple[Root, str]) -> None:
    root, program = capped
    loader = "/lib/ld-musl-x86_64.so.1"
    ended = root.run(loader, program, "dlopen", environment=PRELOADED)
    assert (ended.status, ended.output) == (0, "capped\n"), ended.errors
    told = root.run(loader, LIBRARY, "--json")
    assert (told.status, told.errors) == (3, "")  # here nothing preloads it
    (device,) = json.loads(told.output)["devices"]
    # The program had PID 1 as this one has, and is gone.
    assert (device["limit_bytes"], device["used_bytes"]) == (LIMIT_MIB << 20, 0)


@pytest.fixture(scope="module")
def userland(tmp_path_factory: pytest.TempPathFactory) -> Root:
    """A tree as musl's distributions have it, without a driver."""
    # Programs of PyPI have packed relocations, which musl reads from 1.2.4 on.
    root = _root(tmp_path_factory.mktemp("musl") / "root", "x86_64", "trixie")
    try:
        found = musl.userland()
    except debian.Unavailable as reason:
        skip_or_fail(str(reason))
    shutil.copytree(found, root.folder / "usr/musl", symlinks=True)
    for folder in ("bin", "tmp", "root", "etc"):
        (root.folder / folder).mkdir(exist_ok=True)
    (root.folder / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n")
    loader = root.folder / "lib/x86_64-linux-musl/libc.so"
    for applet in musl.applets(found / "bin/busybox", loader):
        (root.folder / "bin" / applet).symlink_to("/usr/musl/bin/busybox")
    return root


NODE, CMAKE, NINJA = (f"/usr/musl/{program}" for program in musl.PROGRAMS)
NODE_PROCESSES = "console.log(require('child_process').execFileSync('/bin/sh', ['-c', 'env | sort; id']).toString())"
NODE_THREADS = "new (require('worker_threads').Worker)('console.log(process.env.LD_PRELOAD)', {eval: true})"
ORDINARY = {
    "sh": ("/bin/sh", "-c", "umask; trap; env | sort; ulimit -a; ls /nonexistent; exit 3"),
    "login shell": ("/bin/su", "-", "nobody", "-c", "set -o; id; cd /nonexistent"),
    "pipes": (
        "/bin/sh",
        "-c",
        "find /lib | sort | xargs md5sum | awk '{ print $1 } END { print NR }'; kill $$",
    ),
    "tar": ("/bin/sh", "-c", "tar -cf - /etc/passwd | tar -tvf -; tar -tf /nonexistent"),
    "wget": ("/bin/wget", "-T", "1", "http://127.0.0.1:9/"),
    "node": (NODE, "-e", "console.log(process.versions.v8, Object.keys(process.env).sort()); process.exit(4)"),
    "node, processes": (NODE, "-e", NODE_PROCESSES),
    "node, threads": (NODE, "-e", NODE_THREADS),
    "cmake": (CMAKE, "-E", "environment"),
    "ninja": (NINJA, "-C", "/nonexistent"),
}


@pytest.mark.roots
@pytest.mark.root
@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_programs_end_as_with_an_empty_library(userland: Root, name: str) -> None:
    library = userland.folder / LIBRARY.lstrip("/")
    ours = library.read_bytes()
    empty = builds.program("empty", "x86_64", "-shared", "-fPIC", "-nostdlib", build="empty")
    with_ours = userland.run(*ORDINARY[name], environment=PRELOADED | {"PATH": "/bin"})
    library.write_bytes(empty.read_bytes())
    try:
        with_empty = userland.run(*ORDINARY[name], environment=PRELOADED | {"PATH": "/bin"})
    finally:
        library.write_bytes(ours)
    assert with_ours == with_empty
    assert with_ours.output or with_ours.errors
