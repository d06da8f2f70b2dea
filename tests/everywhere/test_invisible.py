"""Programs that do not use CUDA behave as with an empty library in our library's place, at the same path."""

import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.cluster.programs import BuildError
from tests.everywhere import builds
from tests.everywhere.container import Container, Ended, machine_gpu, machine_library, make_container
from tests.everywhere.seccomp import docker_filter

from isolator_testing import debian
from isolator_testing.tools import require, require_root, skip_or_fail

GO = """package main
import ("fmt"; "os"; "os/user")
func main() { u, err := user.Current(); fmt.Println("go", u.Uid, err); os.Exit(5) }
"""
RUST = 'fn main() { println!("rust {}", std::env::args().count()); std::process::exit(6) }\n'
PYTHON = "import ctypes, os, ssl, sqlite3; print(sorted(os.environ), ctypes.CDLL(None).getpid() == os.getpid())"


@dataclass(frozen=True)
class Pair:
    """A container twice over: with our library, and with an empty one in its place."""

    container: Container
    ours: bytes
    empty: bytes

    def run(self, *command: str | Path, **variables: str) -> tuple[Ended, Ended]:
        """How a program ends with each."""
        ended = []
        for content in (self.ours, self.empty):
            self.container.library.write_bytes(content)
            ended.append(self.container.run(*command, **variables))
        return ended[0], ended[1]

    def check(self, *command: str | Path, status: int | None = None, **variables: str) -> None:
        ours, empty = self.run(*command, **variables)
        assert ours == empty
        assert status is None or ours.status == status, ours


@pytest.fixture
def pair() -> Iterator[Pair]:
    """In a folder that every user may enter, and without a driver."""
    empty = builds.program("empty", "x86_64", "-shared", "-fPIC", "-nostdlib", build="empty")
    with tempfile.TemporaryDirectory(prefix="everywhere-") as name:
        Path(name).chmod(0o755)
        container = make_container(Path(name) / "c", machine_library(), None)
        yield Pair(container, machine_library().read_bytes(), empty.read_bytes())


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("compiled")
    (folder / "hello.go").write_text(GO)
    (folder / "hello.rs").write_text(RUST)
    go, rustc = require("go", package="golang-go"), require("rustc", package="rustc")
    for cgo in ("0", "1"):
        with_cgo = {"PATH": str(go.parent) + ":/usr/bin:/bin", "HOME": str(Path.home()), "CGO_ENABLED": cgo}
        target = folder / f"go-{cgo}"
        subprocess.run(
            [go, "build", "-o", target, folder / "hello.go"], env=with_cgo | {"GO111MODULE": "off"}, check=True
        )
    subprocess.run([rustc, "-o", folder / "rust", folder / "hello.rs"], check=True, capture_output=True)
    return {name: folder / name for name in ("go-0", "go-1", "rust")}


COMMANDS = {
    "shell": ("sh", "-c", "umask; trap; env | sort; ulimit -a; ls /nonexistent; exit 3"),
    "login shell": ("bash", "-lc", "set -o; echo $BASHOPTS; exec 2>&1; cd /nonexistent"),
    "python": ("python3", "-I", "-c", PYTHON),
    "curl": ("curl", "--version"),
    "git": ("git", "--exec-path"),
    "node": ("node", "-e", "console.log(process.versions.v8, Object.keys(process.env)); process.exit(4)"),
    "perl": ("perl", "-e", "print join(' ', sort keys %SIG), $?; kill 'TERM', $$"),
    "tar": ("tar", "--list", "--file", "/nonexistent"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_ordinary_programs_end_the_same(pair: Pair, name: str) -> None:
    program, *arguments = COMMANDS[name]
    packages = {"node": "nodejs", "python3": "python3"}
    pair.check(require(program, package=packages.get(program, program)), *arguments)


@pytest.mark.parametrize(("name", "status"), [("go-0", 5), ("go-1", 5), ("rust", 6)])
def test_programs_of_other_languages_end_the_same(
    pair: Pair, compiled: dict[str, Path], name: str, status: int
) -> None:
    pair.check(compiled[name], status=status)


@pytest.fixture
def state() -> Path:
    return builds.program("state", "x86_64", "-Wno-unused-result", "-ldl", "-pthread", build="state")


@pytest.mark.parametrize("way", ["", "close", "tiny"])
def test_a_program_finds_nothing_changed(pair: Pair, state: Path, way: str) -> None:
    pair.check(state, *([way] if way else []), status=7)


def test_a_program_that_enumerates_symbols(pair: Pair) -> None:
    for libc in (builds.OLDEST, "gnu.2.36"):
        program = builds.program("symbols", "x86_64", "-ldl", build="symbols", libc=libc)
        ours, empty = pair.run(program, pair.container.library)
        assert ours == empty
        assert (ours.status, ours.errors) == (0, "")
        assert ours.output.count("/libc.so.6\n") > 2000
        assert f"object {pair.container.library}: read\n" in ours.output


def test_old_and_new_programs_and_ones_bound_lazily(pair: Pair) -> None:
    for libc in (builds.OLDEST, "gnu.2.36"):
        for binding in ("-Wl,-z,lazy", "-Wl,-z,now"):
            options = ("-Wno-unused-result", binding, "-ldl", "-pthread")
            pair.check(builds.program("state", "x86_64", *options, build=f"state{binding[-4:]}", libc=libc), status=7)


def test_a_static_program_never_meets_the_library(pair: Pair) -> None:
    static = builds.program("empty_main", "x86_64", "-static", build="static", libc="musl")
    pair.check(static, status=9)


CONDITIONS = {
    "limits is a file": 'rm -r "$C/vgpu/limits" && : > "$C/vgpu/limits"',
    "the request is a directory": 'rm "$C/vgpu/limits/request" && mkdir "$C/vgpu/limits/request"',
    "the region is a directory": 'mkdir -p "$C/vgpu/containers/uid_main/usage.cache"',
    "nobody may read the limits": 'chmod 0 "$C/vgpu/limits"',
}


@pytest.mark.parametrize("name", CONDITIONS)
def test_what_is_broken_matters_to_cuda_alone(pair: Pair, state: Path, name: str) -> None:
    folder = str(pair.container.folder)
    subprocess.run(["sh", "-ec", CONDITIONS[name]], env={"C": folder, "PATH": "/usr/bin:/bin"}, check=True)
    pair.check(state, status=7)


def as_nobody() -> tuple[str | Path, ...]:
    return require("setpriv", package="util-linux"), "--reuid=65534", "--regid=65534", "--clear-groups"


SURROUNDINGS = {
    "read-only root": 'mount -o remount,bind,ro / && exec "$@"',
    "full disk": """mount -t tmpfs -o size=4k none /tmp; cd /tmp; head -c 9999 /dev/zero 2>&1 >full || exec "$@" """,
    "no /proc": 'mount -t tmpfs none /proc && exec "$@"',
    "no /dev": 'mount -t tmpfs none /dev && exec "$@"',
}


@pytest.fixture
def elsewhere(pair: Pair, state: Path) -> Iterator[tuple[Pair, Path]]:
    """The pair and the program outside /tmp, which some surroundings cover."""
    with tempfile.TemporaryDirectory(prefix="everywhere-", dir="/var/tmp") as name:
        Path(name).chmod(0o755)
        container = make_container(Path(name) / "c", machine_library(), None)
        program = Path(name) / "state"
        program.write_bytes(state.read_bytes())
        program.chmod(0o755)
        yield Pair(container, pair.ours, pair.empty), program


@pytest.mark.root
@pytest.mark.parametrize("name", SURROUNDINGS)
def test_where_a_program_runs_does_not_matter(elsewhere: tuple[Pair, Path], name: str) -> None:
    require_root()
    pair, state = elsewhere
    unshare = require("unshare", package="util-linux")
    pair.check(unshare, "--mount", "sh", "-ec", SURROUNDINGS[name], "sh", state, status=7)


@pytest.mark.root
def test_as_another_user(elsewhere: tuple[Pair, Path]) -> None:
    require_root()
    pair, state = elsewhere
    pair.check(*as_nobody(), state, status=7)


def under_docker() -> tuple[Path, Path]:
    """Command that starts a program under Docker's default seccomp profile."""
    try:
        return builds.program("seccomp", "x86_64", build="seccomp"), docker_filter()
    except (debian.Unavailable, BuildError) as reason:
        skip_or_fail(str(reason))


@pytest.mark.root
def test_under_the_profile_that_runtimes_have_by_default(elsewhere: tuple[Pair, Path]) -> None:
    require_root()
    pair, state = elsewhere
    unshare = require("unshare", package="util-linux")
    assert pair.container.run(unshare, "--mount", "true", preload="").status == 0
    denied = pair.container.run(*under_docker(), unshare, "--mount", "true", preload="")
    assert "Operation not permitted" in denied.errors
    pair.check(*under_docker(), state, status=7)


@pytest.mark.root
@pytest.mark.parametrize("name", ["another user", "seccomp", "no /proc"])
def test_memory_is_capped_there_too(name: str) -> None:
    require_root()
    with tempfile.TemporaryDirectory(prefix="everywhere-", dir="/var/tmp") as folder:
        Path(folder).chmod(0o777)
        container = make_container(Path(folder) / "c", machine_library(), machine_gpu())
        container.folder.chmod(0o777)
        program = builds.program("allocate", "x86_64", "-ldl", build="allocate")
        prefix: dict[str, tuple[str | Path, ...]] = {
            "another user": as_nobody(),
            "seccomp": under_docker(),
            "no /proc": (require("unshare", package="util-linux"), "-m", "sh", "-ec", SURROUNDINGS["no /proc"], "sh"),
        }
        ended = container.run(*prefix[name], program, "dlopen")
        assert (ended.output, ended.status) == ("capped\n", 0), ended.errors


def _calls(trace: Path) -> tuple[set[str], list[str]]:
    """Names of the system calls before main, and the calls after it without addresses."""
    lines = trace.read_text().splitlines()
    main = next(i for i, line in enumerate(lines) if '"main\\n"' in line)
    names = {match[1] for line in lines[:main] if (match := re.match(r"(?:\d+ +)?(\w+)\(", line))}
    varying = re.compile(r"0x[0-9a-f]+|^\d+ +|\"(\\x[0-9a-f]{2})+\"| +(?== )")
    return names, [varying.sub("_", line) for line in lines[main:]]


def test_system_calls_are_the_loaders_alone(pair: Pair, state: Path, tmp_path: Path) -> None:
    strace = require("strace", package="strace")
    traces = []
    for name, content in (("ours", pair.ours), ("empty", pair.empty)):
        pair.container.library.write_bytes(content)
        trace = tmp_path / name
        preload = f"LD_PRELOAD={pair.container.library}"
        pair.container.run(strace, "-f", "-E", preload, "-o", trace, state, preload="")
        traces.append(_calls(trace))
    assert traces[0] == traces[1]
