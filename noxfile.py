"""Every task a person runs here. `./dev run nox --list` shows them."""

import os
import sys
from pathlib import Path

import nox

ROOT = Path(__file__).parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "kai-resource-isolator"
SERVICES = ("libsync", "monitor", "vramd", "webhook")
FOLDERS = {"core": "packages/core"} | {name: f"services/{name}" for name in SERVICES}
PROTO = "isolator_core/proto/vram.proto"
PROTO_ROOT = "packages/core/src"

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "none"
nox.options.sessions = ["native", "tests", "lint"]


def _in_environment(session: nox.Session) -> None:
    """Stop with one line unless the development environment that `./dev` makes is the one in use."""
    if Path(sys.prefix).resolve() != (ROOT / ".venv").resolve():
        session.error(f"run this as `./dev run nox -s {session.name}`: it needs the environment that ./dev makes")


def _make(session: nox.Session, folder: str, *arguments: str) -> None:
    session.run("make", "--no-print-directory", "-C", folder, *arguments, external=True)


@nox.session
def demo(session: nox.Session) -> None:
    """Take the example pods through every part on a fake GPU and print what was observed."""
    _in_environment(session)
    native_build(session)
    session.run("python", "-m", "tests.demo", *session.posargs)


def native_build(session: nox.Session) -> None:
    """Build the library and the fake GPU."""
    for folder in ("native/hami-core", "tests/fakegpu"):
        _make(session, folder)


@nox.session
def native(session: nox.Session) -> None:
    """Build the library and the fake GPU, and run their tests."""
    _in_environment(session)
    native_build(session)
    _make(session, "native/hami-core", "check")
    session.run("pytest", "tests/fakegpu", *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """Test every package alone, then what crosses them."""
    _in_environment(session)
    for name in FOLDERS:
        session.notify(f"tests-{name}", session.posargs)
    native_build(session)
    session.run(
        "pytest", "tests", "--ignore=tests/fakegpu",
        "-m", "not cluster and not roots and not soak and not containerd", *session.posargs,
    )  # fmt: skip


@nox.session
def integration(session: nox.Session) -> None:
    """Run the chart and the services on a real control plane; with KUBECONFIG set, on that cluster."""
    _in_environment(session)
    native_build(session)
    session.run("pytest", "tests", "--ignore=tests/fakegpu", "-m", "cluster", *session.posargs)


@nox.session
def everywhere(session: nox.Session) -> None:
    """Run the library in root file systems of four Debian releases, musl trees and on aarch64 by emulation."""
    _in_environment(session)
    native_build(session)
    session.run("pytest", "tests/everywhere", *session.posargs)


@nox.session
def containerd(session: nox.Session) -> None:
    """Run pods that have the library from an image on real containerds, built from their Go modules at first."""
    _in_environment(session)
    session.run("pytest", "tests/containerd", *session.posargs)


@nox.session
def soak(session: nox.Session) -> None:
    """Search for wrong books at random: long programs of every kind of memory, beside the fake driver's own books."""
    _in_environment(session)
    native_build(session)
    session.run("pytest", "tests", "--ignore=tests/fakegpu", "-m", "soak", *session.posargs)


@nox.session(name="native-gpu")
def native_gpu(session: nox.Session) -> None:
    """Run the library's suite on a machine with a real NVIDIA GPU; says so and skips elsewhere."""
    _in_environment(session)
    native_build(session)
    session.run("pytest", "tests/native/gpu", "-m", "gpu", "-rs", *session.posargs)


@nox.session(name="integration-matrix")
def integration_matrix(session: nox.Session) -> None:
    """Run the same on every pinned version of Kubernetes."""
    _in_environment(session)
    native_build(session)
    for folder in sorted((ROOT / "tests/cluster/go").glob("kubernetes-*")):
        session.run(
            "pytest", "tests", "--ignore=tests/fakegpu", "-m", "cluster", *session.posargs,
            env={"KUBERNETES_VERSION": folder.name.removeprefix("kubernetes-")},
        )  # fmt: skip


@nox.session
def release(session: nox.Session) -> None:
    """Build the library as it is shipped: glibc 2.17, x86-64 and aarch64."""
    _in_environment(session)
    _make(session, "native/hami-core", "release")


@nox.session
def images(session: nox.Session) -> None:
    """Build the images of services and library with whichever of docker, podman and buildah is there."""
    _in_environment(session)
    release(session)
    session.run("python", "-m", "deploy.images", *session.posargs)


@nox.session
def mutants(session: nox.Session) -> None:
    """Apply small wrong changes to the library, one at a time: its tests must notice each."""
    _in_environment(session)
    _make(session, "native/hami-core", "mutants")


@nox.session
def fuzz(session: nox.Session) -> None:
    """Fuzz the library's parser and region loader at once; seconds by argument, 30 without."""
    _in_environment(session)
    seconds = session.posargs[0] if session.posargs else "30"
    _make(session, "native/hami-core", "-j2", "fuzz", f"FUZZ_SECONDS={seconds}")


@nox.session
def sanitize(session: nox.Session) -> None:
    """Run the library's C tests with the sanitizers built in."""
    _in_environment(session)
    for name, sanitizers in (("asan", "address,undefined"), ("tsan", "thread")):
        _make(session, "native/hami-core", "check", f"SANITIZE={sanitizers}", f"BUILD=build/{name}")


def _package_tests(name: str, folder: str) -> None:
    @nox.session(name=f"tests-{name}", venv_backend="uv", reuse_venv=True)
    def package_tests(session: nox.Session) -> None:
        editable = ["packages/core", "tests/support"] + ([folder] if name != "core" else [])
        session.install(
            "--constraint", "constraints.txt",
            *(argument for path in editable for argument in ("--editable", path)),
            "--group", f"{folder}/pyproject.toml:test",
            silent=True,
        )  # fmt: skip
        session.run("pytest", f"{folder}/tests", *session.posargs)

    package_tests.__doc__ = f"Test {folder} in an environment that has only what it declares."


for _name, _folder in FOLDERS.items():
    _package_tests(_name, _folder)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, types, import direction and that generated code is fresh."""
    _in_environment(session)
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy", *[f"{folder}/src" for folder in FOLDERS.values()], "tests/support/src")
    session.run("mypy", "noxfile.py", *map(str, sorted((ROOT / "tests").glob("**/*.py"))))
    session.run("lint-imports", "--no-cache")
    _generate_proto(session, Path(session.create_tmp()))
    for fresh in sorted((Path(session.create_tmp()) / PROTO).parent.glob("vram_pb2*")):
        committed = ROOT / PROTO_ROOT / Path(PROTO).parent / fresh.name
        if not committed.exists() or fresh.read_bytes() != committed.read_bytes():
            session.error(f"{committed.relative_to(ROOT)} is stale: run `./dev run nox -s proto` and commit it")


def _generate_proto(session: nox.Session, output: Path) -> None:
    session.run(
        "python", "-m", "grpc_tools.protoc", f"--proto_path={PROTO_ROOT}",
        f"--python_out={output}", f"--pyi_out={output}", f"--grpc_python_out={output}", PROTO,
    )  # fmt: skip


@nox.session
def bench(session: nox.Session) -> None:
    """Measure speed and memory beside their budgets; name parts to measure only those, `--write` keeps the table."""
    _in_environment(session)
    native_build(session)
    session.run("python", "-m", "tests.bench", *session.posargs)


@nox.session
def proto(session: nox.Session) -> None:
    """Generate Python from vram.proto."""
    _in_environment(session)
    _generate_proto(session, ROOT / PROTO_ROOT)


@nox.session
def pins(session: nox.Session) -> None:
    """Write constraints.txt anew: the newest version of everything that fits."""
    _in_environment(session)
    packages = [*FOLDERS.values(), "tests/support"]
    wanted = Path(session.create_tmp()) / "requirements.in"
    wanted.write_text("".join(f"-e {ROOT / folder}\n" for folder in packages))
    session.run(
        "uv", "pip", "compile", "--quiet", "--upgrade", "--python-version", "3.11", "--no-header", "--no-annotate",
        "--group", "dev", *[f"--group={ROOT / folder}/pyproject.toml:test" for folder in FOLDERS.values()],
        *[f"--no-emit-package=isolator-{name}" for name in (*FOLDERS, "testing")],
        "--output-file", "constraints.txt", str(wanted),
    )  # fmt: skip
