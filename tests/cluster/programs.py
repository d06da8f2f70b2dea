"""Kubernetes', etcd's, helm's and containerd's own programs, built once from their Go modules and kept in the cache.

Each folder under `go/` pins one set of programs by a go.mod and a go.sum. The cache's key is the hash of that go.mod:
a changed pin builds anew and an unchanged one never does.
"""

import hashlib
import json
import os
import shutil
import subprocess
import threading
import time
from contextlib import AbstractContextManager
from pathlib import Path

from tests.cluster import waiting

from isolator_testing.processes import dying_with_us, running

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "kai-resource-isolator" / "cluster"
MODULES = Path(__file__).parent / "go"
KUBERNETES_VERSIONS = tuple(
    sorted((path.name.removeprefix("kubernetes-") for path in MODULES.glob("kubernetes-*")), key=lambda v: v.split("."))
)
DEFAULT_KUBERNETES = "1.34"
DEFAULT_CONTAINERD = "2.2"
BUILD_SECONDS = 3600
"""What one program may take, and what others may build before it: minutes, and ten of them beside other work."""

_KUBERNETES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kubelet")
_CONTAINERD = ("containerd", "containerd-shim-runc-v2")
_PACKAGES = {
    "etcd": "go.etcd.io/etcd/server/v3",
    "helm3": "helm.sh/helm/v3/cmd/helm",
    "helm4": "helm.sh/helm/v4/cmd/helm",
    **{name: f"k8s.io/kubernetes/cmd/{name}" for name in _KUBERNETES},
    **{name: f"github.com/containerd/containerd/v2/cmd/{name}" for name in _CONTAINERD},
}


def chosen_kubernetes() -> str:
    """The minor version that the tests run on: KUBERNETES_VERSION, or the default."""
    return os.environ.get("KUBERNETES_VERSION", DEFAULT_KUBERNETES)


class BuildError(Exception):
    """A program could not be built. The text says which and shows the end of the compiler's output."""


def _module_of(program: str, kubernetes: str, containerd: str) -> Path:
    if program.startswith("helm"):
        return MODULES / "helm"
    kind, version = ("containerd", containerd) if program in _CONTAINERD else ("kubernetes", kubernetes)
    folder = MODULES / f"{kind}-{version}"
    if not folder.is_dir():
        pinned = sorted(path.name.removeprefix(f"{kind}-") for path in MODULES.glob(f"{kind}-*"))
        raise BuildError(f"{kind} {version} is not pinned; pinned are {', '.join(pinned)}")
    return folder


def _version(folder: Path, package: str) -> str:
    """Version of the module that holds a package, as the folder's go.mod requires it."""
    listed = subprocess.run(
        ["go", "mod", "edit", "-json"], cwd=folder, check=True, capture_output=True, text=True, env=_environment()
    )
    for required in json.loads(listed.stdout)["Require"]:
        if package == required["Path"] or package.startswith(required["Path"] + "/"):
            return str(required["Version"])
    raise BuildError(f"{folder / 'go.mod'} requires no module that holds {package}")


def _stamp(package: str, version: str) -> list[str]:
    """Linker flags that write the version into a program as its own release build does."""
    if package.startswith("helm.sh/"):
        return [f"-X {package.removesuffix('/cmd/helm')}/internal/version.version={version}"]
    if package.startswith("github.com/containerd/"):
        return [f"-X github.com/containerd/containerd/v2/version.Version={version}"]
    if package.startswith("k8s.io/"):
        major, minor, _ = version.removeprefix("v").split(".")
        stamped = {"gitVersion": version, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
        return [
            f"-X {where}.{key}={value}"
            for where in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
            for key, value in stamped.items()
        ]
    return []


def _environment() -> dict[str, str]:
    return os.environ | {"GOFLAGS": "-p=2 -buildvcs=false", "CGO_ENABLED": "0", "GOWORK": "off"}


def _one_build_at_a_time(program: str) -> AbstractContextManager[None]:
    CACHE.mkdir(parents=True, exist_ok=True)
    (CACHE / "lock").touch()
    return waiting.alone(CACHE / "lock", f"the cache, to build {program}", BUILD_SECONDS)


def _build(folder: Path, package: str, target: Path) -> None:
    """Compile one program, saying every few seconds how many packages are done."""
    version = _version(folder, package)
    waiting.say(f"building {target.name} {version} (once; minutes)")
    # Not by `nice`: who waits for the program would wait for whatever else this machine does.
    # A compiler that outlived a killed run would write into the cache beside the next one's.
    command = [
        "go", "build", "-v", "-trimpath",
        "-ldflags", " ".join(["-s", "-w", *_stamp(package, version)]),
        "-o", str(target.with_suffix(".new")), package,
    ]  # fmt: skip
    started = said = time.monotonic()
    done, last = 0, [""] * 20
    with running(dying_with_us(command), cwd=folder, stderr=subprocess.PIPE, env=_environment()) as process:
        too_long = threading.Timer(BUILD_SECONDS, process.kill)
        too_long.daemon = True
        too_long.start()
        assert process.stderr is not None
        for line in process.stderr:
            done += 1
            last = [*last[1:], line]
            if time.monotonic() - said > waiting.PROGRESS_SECONDS:
                said = time.monotonic()
                waiting.say(f"  {target.name}: {done} packages after {said - started:.0f} s")
        process.wait()
        too_long.cancel()
    if process.returncode != 0:
        took = f"with status {process.returncode} after {time.monotonic() - started:.0f} of at most {BUILD_SECONDS} s"
        raise BuildError(f"building {package} ended {took}:\n{''.join(last)}")
    target.with_suffix(".new").rename(target)
    waiting.say(f"built {target.name} in {time.monotonic() - started:.0f} s")


def ensure(program: str, kubernetes: str = DEFAULT_KUBERNETES, *, containerd: str = DEFAULT_CONTAINERD) -> Path:
    """Path of a program, built on the first call.

    `program` is one of etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kubelet, kubectl, helm3, helm4,
    containerd, containerd-shim-runc-v2; `kubernetes` and `containerd` are pinned minor versions such as 1.34 and 2.2.
    Raises BuildError.
    """
    if program not in _PACKAGES:
        raise BuildError(f"unknown program {program!r}; known are {', '.join(sorted(_PACKAGES))}")
    folder = _module_of(program, kubernetes, containerd)
    key = hashlib.sha256((folder / "go.mod").read_bytes()).hexdigest()[:16]
    target = CACHE / key / program
    if target.exists():
        return target
    if shutil.which("go") is None:
        raise BuildError(f"{program} must be built and go is missing: install Go 1.26 or later")
    with _one_build_at_a_time(program):
        if not target.exists():
            target.parent.mkdir(exist_ok=True)
            _build(folder, _PACKAGES[program], target)
    return target
