"""The library as a program, which says what holds in its container."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.everywhere import builds
from tests.everywhere.container import LIMIT_MIB, UID, Container, machine_library
from tests.everywhere.roots import libc_root, put_driver, put_library

from isolator_testing import debian
from isolator_testing.tools import require_root, skip_or_fail

MIB = 1024 * 1024
UUID = "GPU-11111111-2222-3333-4444-555555555555"


def told(container: Container, preload: str | None = None, **variables: str) -> Any:
    ended = container.run(container.library, "--json", preload=preload, **variables)
    assert ended.errors == ""
    return json.loads(ended.output) | {"status": ended.status}


@pytest.fixture(autouse=True)
def executable(container: Container) -> None:
    container.library.chmod(0o755)


def test_says_limits_before_any_program_has_used_cuda(container: Container) -> None:
    region = container.folder / f"vgpu/containers/{UID}_main/usage.cache"
    device = {
        "uuid": UUID,
        "limit_bytes": LIMIT_MIB * MIB,
        "limit_from": "limits/request",
        "used_bytes": 0,
        "processes": [],
    }
    assert told(container) == {
        "status": 0,
        "version": "0.1.0",
        "directory": str(container.folder / "vgpu"),
        "refused": None,
        "managed": True,
        "container": "main",
        "request": "memory=4096m",
        "kai_bytes": None,
        "preloaded_by": "LD_PRELOAD",
        "region": str(region),
        "region_exists": False,
        "devices": [device],
    }
    assert not region.parent.exists()


def test_says_who_uses_what(container: Container) -> None:
    client = builds.program("hold", "x86_64", "-ldl", build="hold")
    environment = container.variables(LD_PRELOAD=str(container.library))
    with subprocess.Popen([client], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as held:
        assert held.stdout is not None
        assert held.stdout.readline() == "holding\n"
        told_now = told(container)["devices"][0]
        text = container.run(container.library).output
        held.communicate("")
    used = told_now["used_bytes"]
    assert used >= 1024 * MIB
    assert told_now["processes"] == [{"pid": held.pid, "used_bytes": used}]
    assert f"used {used} bytes\n  process {held.pid}: {used} bytes\n" in text
    assert told(container)["devices"][0]["processes"] == []


def test_names_the_source_of_a_limit(container: Container) -> None:
    (container.folder / "vgpu/limits/CUDA_DEVICE_MEMORY_LIMIT").write_text("4000m")
    assert told(container)["kai_bytes"] == 4000 * MIB
    assert told(container)["devices"][0]["limit_from"] == "limits/CUDA_DEVICE_MEMORY_LIMIT"
    own = told(container, ISOLATOR_MEMORY_LIMIT="1g")["devices"][0]
    assert (own["limit_bytes"], own["limit_from"]) == (1024 * MIB, "ISOLATOR_MEMORY_LIMIT")


def test_a_fraction_is_of_the_card(container: Container, without_driver: Container) -> None:
    for where in (container, without_driver):
        (where.folder / "vgpu/limits/request").write_text("container=main\nfraction=0.250\n")
    assert told(container)["request"] == "fraction=0.25"
    assert told(container)["devices"][0]["limit_bytes"] == 3840 * MIB
    without_driver.library.chmod(0o755)
    assert told(without_driver)["devices"] == []


def test_names_the_region_in_a_directory_of_the_node(container: Container) -> None:
    (container.folder / "vgpu/limits/request").write_text("container=main\nmemory=4096m\nregion=hostPath\n")
    client = builds.program("hold", "x86_64", "-ldl", build="hold")
    environment = container.variables(LD_PRELOAD=str(container.library))
    with subprocess.Popen([client], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as held:
        assert held.stdout is not None
        assert held.stdout.readline() == "holding\n"
        answer = told(container)
        held.communicate("")
    assert answer["region"] == str(container.folder / "vgpu/containers/usage.cache")
    assert answer["region_exists"] is True
    assert [process["pid"] for process in answer["devices"][0]["processes"]] == [held.pid]


def test_unmanaged_limits_come_from_the_environment(container: Container, tmp_path: Path) -> None:
    (container.folder / "vgpu/limits").rename(tmp_path / "away")
    region = {"CUDA_DEVICE_MEMORY_SHARED_CACHE": str(tmp_path / "region.cache")}
    answer = told(container, CUDA_DEVICE_MEMORY_LIMIT="2g", **region)
    assert answer["managed"] is False
    assert answer["devices"][0]["limit_bytes"] == 2048 * MIB
    assert answer["devices"][0]["limit_from"] == "environment"
    assert answer["region"] == region["CUDA_DEVICE_MEMORY_SHARED_CACHE"]


def test_says_why_cuda_is_refused(container: Container) -> None:
    (container.folder / "vgpu/limits/request").write_text("container=main\nmemory=lots\n")
    answer = told(container)
    assert answer["status"] == 1
    assert "memory" in answer["refused"]
    assert "lots" in answer["refused"]
    text = container.run(container.library, preload="")
    assert (text.status, text.errors) == (1, "")
    assert f"CUDA is refused: {answer['refused']}" in text.output


@pytest.mark.parametrize(("arguments", "status"), [(("--help",), 0), (("--yaml",), 2), (("--json", "--json"), 2)])
def test_says_how_it_is_used(container: Container, arguments: tuple[str, ...], status: int) -> None:
    ended = container.run(container.library, *arguments, preload="")
    assert ended.status == status
    assert ended.errors.startswith("usage: libvgpu.so [--json]\n")


@pytest.mark.parametrize("preload", ["", "libm.so.6", "{library}.old"])
def test_says_that_programs_pass_by_where_nothing_preloads_it(container: Container, preload: str) -> None:
    other = Path(f"{container.library}.old")
    other.write_bytes(container.library.read_bytes())
    preload = preload.format(library=container.library)
    assert {"status": 3, "preloaded_by": None}.items() <= told(container, preload="", LD_PRELOAD=preload).items()
    text = container.run(container.library, preload="").output
    assert "not preloaded: programs pass by" in text


@pytest.mark.parametrize("preload", ["{library}", "libm.so.6:{library}", "libm.so.6 {link}"])
def test_finds_itself_among_what_is_preloaded(container: Container, preload: str) -> None:
    link = container.folder / "link.so"
    link.symlink_to(container.library)
    answer = told(container, preload=preload.format(library=container.library, link=link))
    assert {"status": 0, "preloaded_by": "LD_PRELOAD"}.items() <= answer.items()


def test_has_the_products_version() -> None:
    chart = (builds.ROOT / "deploy/helm/kai-resource-isolator/Chart.yaml").read_text()
    version = (builds.LIBRARY_FOLDER / "src/version.h").read_text().split('VERSION "')[1].split('"')[0]
    assert f"appVersion: {version}\n" in chart.replace('"', "")


@pytest.mark.root
@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("# of the node\n/usr/local/vgpu/libvgpu.so", "/etc/ld.so.preload"),
        ("/lib/x.so:/usr/local/vgpu/libvgpu.so /lib/y.so\n", "/etc/ld.so.preload"),
        ("# /usr/local/vgpu/libvgpu.so\n/lib/x.so\n", None),
        ("", None),
    ],
)
def test_reads_the_preload_file_as_the_loader_does(tmp_path: Path, text: str, source: str | None) -> None:
    require_root()
    try:
        root = libc_root(tmp_path / "root", "x86_64", "bookworm")
    except debian.Unavailable as reason:
        skip_or_fail(str(reason))
    put_library(root.folder, "x86_64")
    (root.folder / "etc/ld.so.preload").write_text(text)
    ended = root.run("/usr/local/vgpu/libvgpu.so", "--json")
    assert json.loads(ended.output)["preloaded_by"] == source
    assert ended.status == (0 if source else 3)


@pytest.mark.root
@pytest.mark.parametrize("suite", ["bullseye", "bookworm", "trixie", "sid"])
def test_runs_where_there_is_nothing_but_a_c_library(tmp_path: Path, suite: str) -> None:
    require_root()
    try:
        root = libc_root(tmp_path / "root", "x86_64", suite)
    except debian.Unavailable as reason:
        skip_or_fail(str(reason))
    put_library(root.folder, "x86_64")
    put_driver(root.folder / "usr/lib/x86_64-linux-gnu", builds.fakegpu("x86_64"))
    ended = root.run("/usr/local/vgpu/libvgpu.so", "--json")
    assert (ended.status, ended.errors) == (0, "")
    answer = json.loads(ended.output)
    assert answer["managed"] is True
    assert answer["preloaded_by"] == "/etc/ld.so.preload"
    assert answer["directory"] == "/usr/local/vgpu"
    # Before 2.34 glibc has no dlopen in libc.so.6, so NVML is not asked, and a limit in bytes needs no card.
    assert [device["limit_bytes"] for device in answer["devices"]] == ([] if suite == "bullseye" else [LIMIT_MIB * MIB])


def test_names_the_loader_of_its_machine() -> None:
    done = subprocess.run([machine_library()], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("libvgpu ")
