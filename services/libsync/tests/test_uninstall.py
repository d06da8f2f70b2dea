"""`uninstall`: nothing is taken away while a pod of the node mounts it."""

import json
import os
from pathlib import Path
from typing import Any

import pytest


def pod(name: str, *host_paths: object, phase: str = "Running", node: str = "gpu-1") -> dict[str, Any]:
    volumes: list[dict[str, Any]] = [
        {"name": f"v{number}", "hostPath": {"path": str(path), "type": "File"}}
        for number, path in enumerate(host_paths)
    ]
    volumes.append({"name": "scratch", "emptyDir": {}})
    return {
        "metadata": {"namespace": "team", "name": name},
        "spec": {"nodeName": node, "volumes": volumes},
        "status": {"phase": phase},
    }


@pytest.fixture
def installed(libsync, keep, host_dir: Path) -> Path:
    libsync("once", *keep)
    return host_dir


@pytest.fixture
def pods_file(tmp_path: Path):
    def write(*pods: dict[str, Any]) -> Path:
        path = tmp_path / "pods.json"
        path.write_text(json.dumps({"kind": "PodList", "apiVersion": "v1", "items": list(pods)}))
        return path

    return write


def test_the_files_and_the_directory_go(libsync, installed: Path, pods_file) -> None:
    libsync("uninstall", "--host-dir", installed, "--pods-file", pods_file())
    assert not installed.exists()


def test_there_may_be_nothing_to_remove(libsync, host_dir: Path, pods_file) -> None:
    assert "nothing_to_remove" in libsync("uninstall", "--host-dir", host_dir, "--pods-file", pods_file()).stderr


@pytest.mark.parametrize("name", ["libvgpu.so", "ld.so.preload"])
@pytest.mark.parametrize("phase", ["Running", "Pending", "Unknown"])
def test_refused_while_a_pod_names_a_file(
    libsync, error_line, right, installed: Path, library: Path, pods_file, name: str, phase: str
) -> None:
    pods = pods_file(pod("trainer", installed / name, phase=phase), pod("second", f"{installed}//{name}"), pod("other"))
    line = error_line(libsync("uninstall", "--host-dir", installed, "--pods-file", pods, status=1))
    assert line.startswith(
        f"{installed}: not removed, since pods of this node mount the files: team/second, team/trainer;"
    )
    assert right(installed, library)


def test_pods_that_are_over_and_pods_that_mount_something_else_do_not_count(
    libsync, installed: Path, pods_file
) -> None:
    pods = pods_file(
        pod("done", installed / "libvgpu.so", phase="Succeeded"),
        pod("broken", installed / "libvgpu.so", phase="Failed"),
        pod("libsync", installed),
        pod("exporter", "/"),
        pod("upstream", "/usr/local/vgpu"),
    )
    libsync("uninstall", "--host-dir", installed, "--pods-file", pods)
    assert not installed.exists()


def test_force_does_not_ask(libsync, installed: Path) -> None:
    libsync("uninstall", "--host-dir", installed, "--force")
    assert not installed.exists()


def test_the_api_is_asked_for_the_pods_of_the_node(libsync, error_line, installed: Path, api_server) -> None:
    api_server.pods = [pod(f"p{number}") for number in range(5)]
    api_server.pods.append(pod("elsewhere", installed / "libvgpu.so", node="gpu-2"))
    api_server.pods.append(pod("last", installed / "libvgpu.so"))
    line = error_line(libsync("uninstall", "--host-dir", installed, *api_server.flags, status=1))
    assert "mount the files: team/last;" in line
    api_server.pods.pop()
    libsync("uninstall", "--host-dir", installed, *api_server.flags)
    assert not installed.exists()
    assert {method for method, _, _ in api_server.requests} == {"GET"}


def test_an_api_that_does_not_answer_is_no_consent(libsync, error_line, right, installed, library, api_server) -> None:
    api_server.fail = (503, {})
    line = error_line(libsync("uninstall", "--host-dir", installed, *api_server.flags, status=1))
    assert line.endswith(": 503 Service Unavailable")
    assert right(installed, library)


def test_label_and_condition_go_too(libsync, installed: Path, api_server) -> None:
    label, condition = "kai-resource-isolator.io/ready", "KaiResourceIsolatorReady"
    api_server.node["metadata"]["labels"] = {label: "true", "other": "x"}
    api_server.node["status"]["conditions"].append({"type": condition, "status": "True"})
    marks = ("--node-label", label, "--node-condition", condition)
    libsync("uninstall", "--host-dir", installed, *marks, *api_server.flags)
    assert api_server.node["metadata"]["labels"] == {"other": "x"}
    assert [one["type"] for one in api_server.node["status"]["conditions"]] == ["Ready"]


def test_refused_while_a_service_would_put_the_files_back(
    libsync, error_line, start, keep, right, host_dir: Path, library: Path
) -> None:
    start(*keep).read_until("right")
    line = error_line(libsync("uninstall", "--host-dir", host_dir, "--force", status=1))
    assert line.endswith("another isolator-libsync keeps this directory: end it first, or it puts the files back")
    assert right(host_dir, library)


def test_what_others_put_there_stays(libsync, keep, host_dir: Path) -> None:
    libsync("once", *keep, "--region-dir")
    (host_dir / "containers" / "uid_main").mkdir()
    (host_dir / ".libvgpu.so.new").write_bytes(b"half")
    libsync("uninstall", "--host-dir", host_dir, "--force")
    assert [path.name for path in host_dir.iterdir()] == ["containers"]
    assert (host_dir / "containers" / "uid_main").is_dir()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, ["--pods-file", "No such file"]),
        ("not json", ["--pods-file", "PodList in JSON"]),
        ('{"items": 3}', ["--pods-file", "PodList in JSON"]),
        ('{"items": [3]}', ["--pods-file", "PodList in JSON"]),
        ("[]", ["--pods-file", "PodList in JSON"]),
    ],
)
def test_a_wrong_list_of_pods_is_no_consent(
    libsync, error_line, right, installed: Path, library: Path, tmp_path: Path, content: str | None, words: list[str]
) -> None:
    path = tmp_path / "pods.json"
    if content is not None:
        path.write_text(content)
    line = error_line(libsync("uninstall", "--host-dir", installed, "--pods-file", path, status=2))
    for word in words:
        assert word in line
    assert right(installed, library)


def test_without_a_way_to_see_the_pods_it_is_refused(
    libsync, error_line, right, installed: Path, library: Path
) -> None:
    line = error_line(libsync("uninstall", "--host-dir", installed, status=2))
    assert "--node-name" in line
    assert "--pods-file" in line
    assert "--force" in line
    assert right(installed, library)


def test_a_directory_that_cannot_be_changed_is_one_sentence(libsync, error_line, installed: Path) -> None:
    for path in (installed / "ld.so.preload", installed / "libvgpu.so"):
        path.unlink()
    (installed / "libvgpu.so").mkdir()
    (installed / "libvgpu.so" / "notes").touch()
    line = error_line(libsync("uninstall", "--host-dir", installed, "--force", status=1))
    assert line == f"{installed}/libvgpu.so: cannot remove: {os.strerror(39)}"
