"""The program as a person or a kubelet runs it."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from isolator_testing.regions import Card, RegionImage, Slot, Use, hold, write
from isolator_testing.tools import require, require_root

UUID = "GPU-00000000-0000-0000-0000-000000000001"
WAIT_SECONDS = 30

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def run(*arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "isolator_monitor", *map(str, arguments)],
        env=environment(variables),
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
    )


def environment(variables: dict[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ISOLATOR_")}
    return kept | variables


def pod(name: str, uid: str, *containers: str, phase: str = "Running") -> dict[str, object]:
    return {
        "metadata": {"name": name, "namespace": "team", "uid": uid},
        "spec": {"containers": [{"name": container} for container in containers]},
        "status": {"phase": phase},
    }


def write_pods(path: Path, *pods: dict[str, object]) -> Path:
    temporary = path.with_suffix(".new")
    temporary.write_text(json.dumps({"apiVersion": "v1", "kind": "PodList", "items": list(pods)}))
    temporary.rename(path)
    return path


def series(text: str) -> Series:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def of(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return name, frozenset({"zone": "vGPU", **labels}.items())


def container(name: str, pod_name: str = "a", container_name: str = "main") -> tuple[str, frozenset[tuple[str, str]]]:
    return of(name, namespace="team", pod=pod_name, container=container_name, vdevice_index="0", device_uuid=UUID)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A region root in which container `main` of the pod `u-1` holds 3 GiB of 4147 MiB by two processes, one dead."""
    slots = {0: Slot(7, [Use(1 << 20, 1 << 10, 2 << 30)]), 1: Slot(8, [Use(buffer=1 << 30)])}
    write(tmp_path / "regions" / "u-1_main", RegionImage([Card(UUID, 4147 << 20)], slots).v1())
    return tmp_path / "regions"


def test_once_prints_used_and_limit_of_living_processes(tmp_path: Path, root: Path) -> None:
    pods = write_pods(tmp_path / "pods.json", pod("a", "u-1", "main", "side"), pod("b", "u-2", "main"))
    with hold(root / "u-1_main" / "usage.lock", [0]):
        done = run("once", "--pods-file", pods, "--region-root", tmp_path / "none", "--region-root", root)
    assert done.returncode == 0, done.stderr
    found = series(done.stdout)
    assert found[container("hami_vgpu_memory_used_bytes")] == (2 << 30) + (1 << 20) + (1 << 10)
    assert found[container("hami_vgpu_memory_limit_bytes")] == 4348444672
    assert {dict(labels).get("pod") for _, labels in found if dict(labels).get("zone")} == {"a"}
    for line in done.stderr.splitlines():
        assert json.loads(line)["service"] == "isolator-monitor"


def test_directories_that_no_pod_names_are_never_looked_at(tmp_path: Path, root: Path) -> None:
    write(root / "u-9_main", RegionImage([Card(UUID, 1)], {}).v1())
    done = run("once", "--pods-file", write_pods(tmp_path / "p", pod("a", "u-1", "other")), "--region-root", root)
    assert done.returncode == 0
    assert "u-9" not in done.stdout
    assert UUID not in done.stdout


def test_an_ended_pod_has_no_series(tmp_path: Path, root: Path) -> None:
    pods = write_pods(tmp_path / "p", pod("a", "u-1", "main", phase="Succeeded"))
    assert UUID not in run("once", "--pods-file", pods, "--region-root", root).stdout


def test_pods_may_be_yaml(tmp_path: Path, root: Path) -> None:
    (tmp_path / "pods.yaml").write_text(
        "kind: PodList\nitems:\n- metadata: {name: a, namespace: team, uid: u-1}\n"
        "  spec: {containers: [], initContainers: [{name: main}]}\n"
    )
    done = run("once", "--pods-file", tmp_path / "pods.yaml", ISOLATOR_MONITOR_REGION_ROOT=str(root))
    assert container("hami_vgpu_memory_limit_bytes") in series(done.stdout)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, ["--pods-file", "No such file"]),
        ("{", ["neither YAML nor JSON"]),
        ("[1]", ["not a PodList", "accepted are PodList and List"]),
        ('{"kind": "NodeList", "items": []}', ["not a PodList", "NodeList"]),
        ('{"kind": "List", "items": [{"metadata": {"uid": 7}, "spec": {}}]}', ["not a PodList", "uid"]),
    ],
)
def test_wrong_pods_file_is_one_clear_line(tmp_path: Path, content: str | None, words: list[str]) -> None:
    path = tmp_path / "pods.json"
    if content is not None:
        path.write_text(content)
    done = run("once", "--pods-file", path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    for word in [str(path), *words]:
        assert word in done.stderr


def test_wrong_settings_end_with_2() -> None:
    done = run("serve", "--pods-file", "p", "--update-interval", "0")
    assert done.returncode == 2
    assert "--update-interval (ISOLATOR_MONITOR_UPDATE_INTERVAL) is '0'" in done.stderr


@contextmanager
def serving(*arguments: str | Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A monitor and its address. Ends it by SIGTERM and expects status 0."""
    process = subprocess.Popen(
        [sys.executable, "-m", "isolator_monitor", "serve", "--listen-address", "127.0.0.1", "--listen-port", "0",
         "--update-interval", "0.1", *map(str, arguments)],
        env=environment({}),
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    try:
        assert process.stderr
        for line in process.stderr:
            entry = json.loads(line)
            if entry["event"] == "listening":
                break
        yield process, f"http://127.0.0.1:{entry['port']}"
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_SECONDS) == 0
        assert json.loads(process.stderr.readlines()[-1])["event"] == "stopped"
    finally:
        process.kill()
        process.communicate()


def get(url: str, accept: str = "*/*") -> tuple[int, str, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers={"Accept": accept}), timeout=10) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["Content-Type"], error.read().decode()


def wait_for(url: str, wanted: float | None, key: tuple[str, frozenset[tuple[str, str]]]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        status, _, body = get(url)
        if status == 200 and series(body).get(key) == wanted:
            return
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_serve_follows_regions_and_pods(tmp_path: Path, root: Path) -> None:
    pods = write_pods(tmp_path / "pods.json", pod("a", "u-1", "main"))
    used = container("hami_vgpu_memory_used_bytes")
    with serving("--pods-file", pods, "--region-root", root) as (_, url):
        metrics = f"{url}/metrics"
        assert series(get(metrics)[2])[used] == 0
        with hold(root / "u-1_main" / "usage.lock", [1]):
            wait_for(metrics, 1 << 30, used)
        wait_for(metrics, 0, used)
        write_pods(pods)
        wait_for(metrics, None, used)
        pods.write_text("{")
        write(root / "u-2_main", RegionImage([Card(UUID, 1 << 30)], {}).v1())
        write_pods(pods, pod("b", "u-2", "main"))
        wait_for(metrics, 1 << 30, container("hami_vgpu_memory_limit_bytes", "b"))


def test_a_region_that_took_anothers_place_is_noticed(tmp_path: Path, root: Path) -> None:
    limit = container("hami_vgpu_memory_limit_bytes")
    pods = write_pods(tmp_path / "pods.json", pod("a", "u-1", "main"))
    with serving("--pods-file", pods, "--region-root", root) as (_, url):
        wait_for(f"{url}/metrics", 4147 << 20, limit)
        write(root / "other", RegionImage([Card(UUID, 2 << 30)], {}).v1()).rename(root / "u-1_main" / "usage.cache")
        wait_for(f"{url}/metrics", 2 << 30, limit)
        (root / "u-1_main" / "usage.cache").write_bytes(RegionImage([Card(UUID, 1 << 30)], {}).v0())
        wait_for(f"{url}/metrics", 1 << 30, limit)


def test_serve_answers_what_is_asked(tmp_path: Path, root: Path) -> None:
    with serving("--pods-file", write_pods(tmp_path / "p", pod("a", "u-1", "main")), "--region-root", root) as (_, url):
        assert get(f"{url}/healthz") == (200, "text/plain; charset=utf-8", "ok\n")
        assert get(f"{url}/readyz")[0] == 200
        assert get(f"{url}/other")[0] == 404
        status, content_type, body = get(f"{url}/metrics?x=1")
        assert (status, content_type.split(";")[0]) == (200, "text/plain")
        assert series(body)[container("hami_vgpu_memory_limit_bytes")] == 4348444672
        _, content_type, body = get(f"{url}/metrics", "application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
        assert content_type.split(";")[0] == "application/openmetrics-text"
        assert "hami_vgpu_memory_limit_bytes" in {family.name for family in parse_openmetrics(body)}


def test_port_in_use_is_one_clear_line(tmp_path: Path, root: Path) -> None:
    pods = write_pods(tmp_path / "p")
    with serving("--pods-file", pods, "--region-root", root) as (_, url):
        port = url.rpartition(":")[2]
        done = run("serve", "--pods-file", pods, "--listen-address", "127.0.0.1", "--listen-port", port)
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in done.stderr.splitlines()[-1]


def test_reader_and_server_are_two_processes(tmp_path: Path, root: Path) -> None:
    pods = write_pods(tmp_path / "pods.json", pod("a", "u-1", "main"))
    path = tmp_path / "reader.sock"
    with serving("--pods-file", pods, "--reader-socket", path) as (_, url):
        assert get(f"{url}/metrics")[0] == 503
        assert get(f"{url}/readyz")[0] == 503
        assert get(f"{url}/healthz")[0] == 200
        reader = subprocess.Popen(
            [sys.executable, "-m", "isolator_monitor", "read", "--reader-socket", path, "--region-root", root],
            env=environment({}),
            stderr=subprocess.DEVNULL,
        )
        try:
            with hold(root / "u-1_main" / "usage.lock", [1]):
                wait_for(f"{url}/metrics", 1 << 30, container("hami_vgpu_memory_used_bytes"))
            assert get(f"{url}/readyz")[0] == 200
            reader.send_signal(signal.SIGTERM)
            assert reader.wait(WAIT_SECONDS) == 0
        finally:
            reader.kill()
            reader.wait()


def test_the_server_ends_while_a_reader_is_silent(tmp_path: Path) -> None:
    pods, path = write_pods(tmp_path / "pods.json"), tmp_path / "reader.sock"
    with serving("--pods-file", pods, "--reader-socket", path) as (_, url), socket.socket(socket.AF_UNIX) as silent:
        silent.connect(str(path))
        silent.settimeout(WAIT_SECONDS)
        # It has asked, and waits for an answer, for longer than this test does.
        assert silent.recv(1)
        assert get(f"{url}/readyz")[0] == 503
        start = time.monotonic()
    assert time.monotonic() - start < 10


@pytest.mark.root
def test_reader_needs_one_capability_and_the_server_no_root(tmp_path: Path, root: Path) -> None:
    """As in the chart: the reader is uid 0 with nothing but DAC_READ_SEARCH, the server another user."""
    require_root()
    setpriv = require("setpriv", package="util-linux")
    root.chmod(0o700)
    for path in (root / "u-1_main", root / "u-1_main" / "usage.cache", root / "u-1_main" / "usage.lock"):
        os.chown(path, 1000, 1000)
        path.chmod(0o700 if path.is_dir() else 0o600)
    shared = tmp_path / "shared"
    shared.mkdir()
    os.chown(shared, 65532, 65532)
    pods = write_pods(tmp_path / "pods.json", pod("a", "u-1", "main"))
    for parent in (tmp_path, *tmp_path.parents):
        if parent.stat().st_uid == 0 and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o055)
    program = [sys.executable, "-m", "isolator_monitor"]
    serve = [
        setpriv, "--reuid=65532", "--regid=65532", "--clear-groups", "--bounding-set=-all", "--no-new-privs", *program,
        "serve", "--listen-address", "127.0.0.1", "--listen-port", "0", "--update-interval", "0.1",
        "--pods-file", pods, "--reader-socket", shared / "s",
    ]  # fmt: skip
    read = [
        setpriv, "--bounding-set=-all,+dac_read_search", "--inh-caps=-all", "--no-new-privs", *program,
        "read", "--reader-socket", shared / "s", "--region-root", root,
    ]  # fmt: skip
    with started(serve) as server, started(read) as reader, hold(root / "u-1_main" / "usage.lock", [1]) as owners:
        port = next(entry["port"] for entry in map(json.loads, server.stderr or ()) if entry["event"] == "listening")
        url = f"http://127.0.0.1:{port}/metrics"
        wait_for(url, 1 << 30, container("hami_vgpu_memory_used_bytes"))
        assert "CapEff:\t0000000000000004\n" in Path(f"/proc/{reader.pid}/status").read_text()
        assert owners


@contextmanager
def started(command: list[str | Path]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(command, env=environment({}), stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()
