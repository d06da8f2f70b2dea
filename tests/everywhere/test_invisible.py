"""Programs that do not use CUDA behave as with an empty library in our library's place, at the same path."""

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from signal import SIGTERM

import pytest
from tests.cluster.programs import BuildError
from tests.everywhere import builds
from tests.everywhere.container import UID, Container, Ended, machine_gpu, machine_library, make_container
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

    def run(self, *command: str | Path) -> tuple[Ended, Ended]:
        """How a program ends with each."""
        ended = []
        for content in (self.ours, self.empty):
            self.container.library.write_bytes(content)
            ended.append(self.container.run(*command))
        return ended[0], ended[1]

    def check(self, *command: str | Path, status: int) -> None:
        """Both must end the same, and with this status: it tells that the program did run."""
        ours, empty = self.run(*command)
        assert ours == empty
        assert empty.status == status, empty


@pytest.fixture
def pair() -> Iterator[Pair]:
    """In a folder that every user may enter, outside /tmp, which a surrounding covers; without a driver."""
    empty = builds.program("empty", "x86_64", "-shared", "-fPIC", "-nostdlib", build="empty")
    with tempfile.TemporaryDirectory(prefix="everywhere-", dir="/var/tmp") as name:
        Path(name).chmod(0o755)
        container = make_container(Path(name) / "c", machine_library(), None)
        yield Pair(container, machine_library().read_bytes(), empty.read_bytes())


PROGRAMS = {
    "shell": (("sh", "-c", "umask; trap; env | sort; ulimit -a; ls /nonexistent; exit 3"), 3),
    "login shell": (("bash", "-lc", "set -o; echo $BASHOPTS; exec 2>&1; cd /nonexistent"), 1),
    "python": (("python3", "-I", "-c", PYTHON), 0),
    "curl": (("curl", "--version"), 0),
    "git": (("git", "--exec-path"), 0),
    "node": (("node", "-e", "console.log(process.versions.v8, Object.keys(process.env)); process.exit(4)"), 4),
    "perl": (("perl", "-e", "print join(' ', sort keys %SIG), $?; kill 'TERM', $$"), 128 + SIGTERM),
    "tar": (("tar", "--list", "--file", "/nonexistent"), 2),
    "go": (("go-0",), 5),
    "go with cgo": (("go-1",), 5),
    "rust": (("rust",), 6),
    "all that a program sees": (("state",), 7),
    "closes all descriptors": (("state", "close"), 7),
    "a tiny stack": (("state", "tiny"), 7),
    "enumerates symbols": (("symbols", "LIBRARY"), 0),
}
"""Ordinary programs with their arguments, where LIBRARY stands for our path, and the exit status of each."""

PACKAGES = {"node": "nodejs"}
OPTIONS = {"state": ("-Wno-unused-result", "-ldl", "-pthread"), "symbols": ("-ldl",)}


def _make_go(target: Path) -> None:
    source = target.with_suffix(".go")
    source.write_text(GO)
    go = require("go", package="golang-go")
    variables = {"PATH": f"{go.parent}:/usr/bin:/bin", "HOME": str(Path.home())}
    settings = {"CGO_ENABLED": target.name.removeprefix("go-"), "GO111MODULE": "off"}
    subprocess.run([go, "build", "-o", target, source], env=variables | settings, check=True)


def _make_rust(target: Path) -> None:
    source = target.with_suffix(".rs")
    source.write_text(RUST)
    rustc = require("rustc", package="rustc")
    subprocess.run([rustc, "-o", target, source], check=True, capture_output=True)


def _make_c(target: Path) -> None:
    shutil.copy(builds.program(target.name, "x86_64", *OPTIONS[target.name], build=target.name), target)


MADE = {"go-0": _make_go, "go-1": _make_go, "rust": _make_rust, "state": _make_c, "symbols": _make_c}


@pytest.fixture(scope="module")
def made() -> Iterator[Path]:
    """Folder for what is made here, which every user may enter."""
    with tempfile.TemporaryDirectory(prefix="everywhere-", dir="/var/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(params=PROGRAMS)
def program(request: pytest.FixtureRequest, made: Path, pair: Pair) -> tuple[str, list[str], int]:
    """One of PROGRAMS: its name, its command and its exit status."""
    (file, *arguments), status = PROGRAMS[request.param]
    if file in MADE:
        found = made / file
        if not found.exists():
            MADE[file](found)
    else:
        # The system's, which every user may start, before one that is in somebody's home.
        system = shutil.which(file, path="/usr/bin:/bin")
        found = Path(system) if system else require(file, package=PACKAGES.get(file, file))
    words = [str(pair.container.library) if word == "LIBRARY" else word for word in arguments]
    return request.param, [str(found), *words], status


def test_ordinary_programs_end_the_same(pair: Pair, program: tuple[str, list[str], int]) -> None:
    _, command, status = program
    pair.check(*command, status=status)


def test_a_directory_in_place_of_the_library_is_named_by_the_loader_alone(
    pair: Pair, program: tuple[str, list[str], int]
) -> None:
    name, command, status = program
    library = pair.container.library
    without = pair.container.run(*command, preload="", LD_PRELOAD="")
    library.unlink()
    library.mkdir()
    ended = pair.container.run(*command)
    said = rf"ERROR: ld\.so: object '{library}' from LD_PRELOAD cannot be preloaded \(.*\): ignored\.\n"
    rest, times = re.subn(said, "", ended.errors)
    # Go without C is static: no loader.
    assert (times == 0) == (name == "go")
    assert Ended(ended.status, ended.output.replace(f"LD_PRELOAD={library}", "LD_PRELOAD="), rest) == without
    assert without.status == status, without


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


AS_NOBODY = 'exec setpriv --reuid=65534 --regid=65534 --clear-groups "$@"'
SECCOMP = "the seccomp profile that runtimes have by default"
SURROUNDINGS = {
    "limits is a file": 'rm -rf "$0/vgpu/limits"; : > "$0/vgpu/limits"; exec "$@"',
    "limits is a directory without a request": 'rm -rf "$0/vgpu/limits"; mkdir "$0/vgpu/limits"; exec "$@"',
    "the request is a directory": 'rm -rf "$0/vgpu/limits/request"; mkdir "$0/vgpu/limits/request"; exec "$@"',
    "the region is a directory": f'mkdir -p "$0/vgpu/containers/{UID}_main/usage.cache"; exec "$@"',
    "the user may not read the limits": f'chmod 0 "$0/vgpu/limits"; {AS_NOBODY}',
    "another user": AS_NOBODY,
    "read-only root": 'mount -o remount,bind,ro /; exec "$@"',
    "full disk": """mount -t tmpfs -o size=4k none /tmp; cd /tmp; head -c 9999 /dev/zero 2>&1 >full || exec "$@" """,
    "no /proc": 'mount -t tmpfs none /proc; exec "$@"',
    "no /dev": 'mount -t tmpfs none /dev; exec "$@"',
    SECCOMP: 'exec "$@"',
}
"""What a program may meet, as scripts that start it there. `$0` is the container's folder."""

OTHERWISE = {("no /dev", "git"): 128, ("no /dev", "perl"): 2}
"""Exit status of what cannot run in a surrounding, whatever is preloaded. These two cannot do without /dev/null."""


def under_docker() -> tuple[Path, Path]:
    """Command that starts a program under Docker's default seccomp profile."""
    try:
        return builds.program("seccomp", "x86_64", build="seccomp"), docker_filter()
    except (debian.Unavailable, BuildError) as reason:
        skip_or_fail(str(reason))


def enter(where: str, container: Container) -> tuple[str | Path, ...]:
    """Command that starts a program in one of SURROUNDINGS, in a mount namespace of its own. Needs root."""
    require_root()
    require("setpriv", package="util-linux")
    unshare = require("unshare", package="util-linux")
    filtered = under_docker() if where == SECCOMP else ()
    return unshare, "--mount", "sh", "-ec", SURROUNDINGS[where], container.folder, *filtered


@pytest.mark.root
@pytest.mark.parametrize("where", SURROUNDINGS)
def test_where_a_program_runs_does_not_matter(pair: Pair, program: tuple[str, list[str], int], where: str) -> None:
    name, command, status = program
    pair.check(*enter(where, pair.container), *command, status=OTHERWISE.get((where, name), status))


@pytest.mark.root
def test_the_seccomp_profile_is_in_force(pair: Pair) -> None:
    unshare = require("unshare", package="util-linux")
    inner = (unshare, "--mount", "true")
    assert pair.container.run(*inner, preload="").status == 0
    denied = pair.container.run(*enter(SECCOMP, pair.container), *inner, preload="")
    assert "Operation not permitted" in denied.errors


@pytest.mark.root
@pytest.mark.parametrize("where", ["another user", SECCOMP, "no /proc"])
def test_memory_is_capped_there_too(where: str) -> None:
    with tempfile.TemporaryDirectory(prefix="everywhere-", dir="/var/tmp") as folder:
        Path(folder).chmod(0o777)
        container = make_container(Path(folder) / "c", machine_library(), machine_gpu())
        container.folder.chmod(0o777)
        program = builds.program("allocate", "x86_64", "-ldl", build="allocate")
        ended = container.run(*enter(where, container), program, "dlopen")
        assert (ended.output, ended.status) == ("capped\n", 0), ended.errors


def _calls(trace: Path) -> tuple[set[str], list[str]]:
    """Names of the system calls before main, and the calls after it without addresses."""
    lines = trace.read_text().splitlines()
    main = next(i for i, line in enumerate(lines) if '"main\\n"' in line)
    names = {match[1] for line in lines[:main] if (match := re.match(r"(?:\d+ +)?(\w+)\(", line))}
    varying = re.compile(r"0x[0-9a-f]+|^\d+ +|\"(\\x[0-9a-f]{2})+\"| +(?== )")
    return names, [varying.sub("_", line) for line in lines[main:]]


def test_system_calls_are_the_loaders_alone(pair: Pair, tmp_path: Path) -> None:
    strace = require("strace", package="strace")
    state = builds.program("state", "x86_64", *OPTIONS["state"], build="state")
    traces = []
    for name, content in (("ours", pair.ours), ("empty", pair.empty)):
        pair.container.library.write_bytes(content)
        trace = tmp_path / name
        preload = f"LD_PRELOAD={pair.container.library}"
        pair.container.run(strace, "-f", "-E", preload, "-o", trace, state, preload="")
        traces.append(_calls(trace))
    assert traces[0] == traces[1]
