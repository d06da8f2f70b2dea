"""A containerd, and what its pods need: images in a registry, a card, the pod that the webhook makes."""

import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pytest
from deploy import images
from tests.cluster import programs
from tests.containerd import containerd, layout, registry
from tests.containerd.containerd import Containerd
from tests.containerd.kubelet import Kubelet
from tests.containerd.layout import Layout
from tests.demo import site
from tests.everywhere import builds
from tests.node.nvidia import DRIVER_DIRECTORY, STATE
from tests.node.objects import Api
from tests.node.runtime import PATH, Bind

from isolator_testing import debian
from isolator_testing.tools import require, require_root, skip_or_fail

HERE = Path(__file__).parent
LIBRARY, BARE, APPLICATION, PAUSE = "library:1", "bare:1", "application:1", "pause:1"
CLIENT = "/usr/local/bin/client"
VERSIONS = ("2.1", "2.2", "2.4")
"""The oldest containerd that mounts images, the oldest that mounts a part of one, and the newest."""


@dataclass(frozen=True)
class Node:
    """A node: a runtime and who gives it pods."""

    kubelet: Kubelet
    runtime: Containerd
    api: Api


def _compiled(folder: Path, name: str, *options: str, libc: str) -> Path:
    program = folder / name
    command = [*builds.compiler(platform.machine(), libc), "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([*command, "-o", str(program), str(HERE / f"{name}.c"), *options], check=True)
    return program


def _library(folder: Path) -> Layout:
    """The library's image, built by its Dockerfile for all machines."""
    require("buildah", package="buildah")
    found = Layout(folder / "layout")
    with mock.patch.dict("os.environ", layout.own_storage(folder)):
        images.build_library()
        images.build_library_image("buildah", f"localhost/{LIBRARY}")
        images.check_library_image("buildah", f"localhost/{LIBRARY}")
        layout.take_from_buildah(found, LIBRARY, f"localhost/{LIBRARY}")
    return found


def _bare(folder: Path) -> Layout:
    """The library alone, without the directories that others mount at."""
    top = folder / "top"
    layout.copy_program(builds.release(platform.machine()), top / "libvgpu.so")
    found = Layout(folder / "layout")
    layout.make_image(found, BARE, [top], [], {})
    return found


def _application(folder: Path) -> Layout:
    """A Debian with the client, and where NVIDIA's images have the loader look for a driver."""
    try:
        base = debian.root_archive("bookworm")
    except debian.Unavailable as missing:
        skip_or_fail(str(missing))
    top = folder / "top"
    layout.copy_program(_compiled(folder, "client", "-ldl", libc=builds.OLDEST), top / CLIENT.lstrip("/"))
    found = Layout(folder / "layout")
    variables = {"PATH": PATH, "LD_LIBRARY_PATH": DRIVER_DIRECTORY}
    layout.make_image(found, APPLICATION, [base, top], [CLIENT], variables)
    return found


def _pause(folder: Path) -> Layout:
    top = folder / "top"
    layout.copy_program(_compiled(folder, "pause", "-static", libc="musl"), top / "pause")
    found = Layout(folder / "layout")
    layout.make_image(found, PAUSE, [top], ["/pause"], {})
    return found


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Where each image is pulled from, by the name that pods have for it."""
    require_root()
    made = {}
    makers = {LIBRARY: _library, BARE: _bare, APPLICATION: _application, PAUSE: _pause}
    for image, make in makers.items():
        name = image.partition(":")[0]
        made[name] = make(tmp_path_factory.mktemp(name))
    with registry.serving(made) as address:
        yield {image: f"{address}/{image}" for image in makers}


@pytest.fixture(scope="session")
def card(tmp_path_factory: pytest.TempPathFactory) -> list[Bind]:
    """What NVIDIA's runtime mounts into each container: a driver, whose state all processes of the node share."""
    directory = tmp_path_factory.mktemp("card")
    state = directory / STATE
    state.mkdir()
    state.chmod(0o777)
    for name in site.DRIVER_FILES:
        shutil.copy(builds.fakegpu(platform.machine()) / name, directory / name)
    (directory / "fakegpu.conf").write_text(site.FAKE_GPU_CONFIG)
    directory.chmod(0o755)
    return [
        Bind(directory, DRIVER_DIRECTORY, read_only=True),
        Bind(state, f"{DRIVER_DIRECTORY}/{STATE}", read_only=False),
    ]


@contextmanager
def runtime_of(program: Path, config: str, pause: str) -> Iterator[Containerd]:
    """A containerd in a directory that goes with it."""
    # A short name: the path of a socket has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="isolator-cri-") as name:
        Path(name).chmod(0o755)
        with containerd.running(Path(name) / "c", program, config, pause) as runtime:
            yield runtime


def built(version: str) -> Path:
    """containerd of a pinned version, with its shim beside it."""
    program = programs.ensure("containerd", containerd=version)
    assert programs.ensure("containerd-shim-runc-v2", containerd=version).parent == program.parent
    return program


def node_of(runtime: Containerd, served: dict[str, str], card: list[Bind]) -> Node:
    """A node with this runtime; the kubelet's directory is beside the runtime's."""
    api = Api()
    return Node(Kubelet(runtime.directory.parent / "kubelet", api, runtime, served, card), runtime, api)


@pytest.fixture(scope="session", params=VERSIONS)
def node(request: pytest.FixtureRequest, served: dict[str, str], card: list[Bind]) -> Iterator[Node]:
    """A node with each pinned containerd in turn and this machine's runc."""
    require("runc", package="runc")
    with runtime_of(built(request.param), containerd.CURRENT, served[PAUSE]) as runtime:
        yield node_of(runtime, served, card)


@pytest.fixture(scope="session")
def old_node(served: dict[str, str], card: list[Bind]) -> Iterator[Node]:
    """A node with Debian 12's containerd 1.6, which knows no image volumes."""
    require("runc", package="runc")
    try:
        program = debian.packages("containerd", suite="bookworm") / "usr/bin/containerd"
    except debian.Unavailable as missing:
        skip_or_fail(str(missing))
    with runtime_of(program, containerd.OLD, served[PAUSE]) as runtime:
        yield node_of(runtime, served, card)
