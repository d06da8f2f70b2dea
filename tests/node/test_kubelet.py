"""A pod runs with exactly what its spec names, and the machine is left as it was."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.node.kubelet import Kubelet
from tests.node.objects import Api, Json, PodFailure
from tests.node.requirements import require_containers
from tests.node.runtime import PATH, Image

pytestmark = pytest.mark.root
PATIENCE = 30.0
ROOT = Path(__file__).parents[2]
RUNTIME_MOUNTS = {"/", "/proc", "/sys", "/dev", "/dev/shm"} | {
    f"/dev/{name}" for name in ("full", "null", "random", "tty", "urandom", "zero")
}


@pytest.fixture(autouse=True)
def _with_containers() -> None:
    require_containers()


@pytest.fixture
def kubelet(tmp_path: Path) -> Iterator[Kubelet]:
    with Kubelet(tmp_path / "node", Api(), {"shell": Image(("/bin/cat",))}) as node:
        yield node


def pod(volumes: list[Json] | None = None, mounts: list[Json] | None = None, **container: object) -> Json:
    return {
        "metadata": {"name": "pod", "namespace": "team", "uid": "0123", "annotations": {"example/request": "first"}},
        "spec": {
            "nodeName": "node",
            "volumes": volumes or [],
            "containers": [{"name": "main", "image": "shell", "volumeMounts": mounts or [], **container}],
        },
    }


def projected(*sources: Json) -> Json:
    return {"name": "volume", "projected": {"defaultMode": 0o444, "sources": list(sources)}}


ANNOTATION: Json = {
    "downwardAPI": {
        "items": [{"path": "request", "fieldRef": {"fieldPath": "metadata.annotations['example/request']"}}]
    }
}
CONFIG_MAP: Json = {"configMap": {"name": "gpu", "items": [{"key": "K", "path": "limit"}], "optional": True}}


def output(kubelet: Kubelet, manifest: Json, script: str) -> str:
    container = kubelet.start(manifest).containers["main"]
    status, printed = container.exec(["sh", "-c", script]).communicate(timeout=PATIENCE)
    assert status == 0, container.errors()
    return printed


def mounts_below(directory: Path) -> list[str]:
    """Mounts of this machine that a container's namespace should have kept: all begin below the node's directory."""
    return [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(directory) in line]


def test_mounts_are_those_of_the_spec_and_of_the_runtime(kubelet: Kubelet, tmp_path: Path) -> None:
    (tmp_path / "node/opt").mkdir()
    (tmp_path / "node/opt/libvgpu.so").write_text("library")
    (tmp_path / "node/opt/ld.so.preload").write_text("")
    manifest = pod(
        volumes=[
            projected(ANNOTATION),
            {"name": "scratch", "emptyDir": {}},
            {"name": "library", "hostPath": {"path": "/opt/libvgpu.so", "type": "File"}},
            {"name": "preload", "hostPath": {"path": "/opt/ld.so.preload", "type": "File"}},
        ],
        mounts=[
            {"name": "scratch", "mountPath": "/usr/local/vgpu/containers"},
            {"name": "volume", "mountPath": "/usr/local/vgpu/limits", "readOnly": True},
            {"name": "library", "mountPath": "/usr/local/vgpu/libvgpu.so", "readOnly": True},
            {"name": "preload", "mountPath": "/etc/ld.so.preload", "readOnly": True},
        ],
    )
    mounts = dict(line.split()[1:4:2] for line in output(kubelet, manifest, "cat /proc/mounts").splitlines())
    given = {
        "/usr/local/vgpu/containers": "rw",
        "/usr/local/vgpu/limits": "ro",
        "/usr/local/vgpu/libvgpu.so": "ro",
        "/etc/ld.so.preload": "ro",
    }
    assert set(mounts) == RUNTIME_MOUNTS | set(given)
    assert {target: mounts[target].split(",")[0] for target in given} == given


def test_read_only_mounts_cannot_be_written_renamed_or_unmounted(kubelet: Kubelet, tmp_path: Path) -> None:
    (tmp_path / "node/lib.so").write_text("library")
    manifest = pod(
        volumes=[projected(ANNOTATION), {"name": "library", "hostPath": {"path": "/lib.so", "type": "File"}}],
        mounts=[
            {"name": "volume", "mountPath": "/limits", "readOnly": True},
            {"name": "library", "mountPath": "/opt/lib.so", "readOnly": True},
        ],
    )
    script = """
        for attempt in 'echo x >/opt/lib.so' 'rm /opt/lib.so' 'mv /opt/lib.so /opt/other' 'touch /limits/new' \
                       'rm /limits/..data' 'umount /opt/lib.so' 'mount -o remount,rw,bind /opt/lib.so'; do
            sh -c "$attempt" 2>/dev/null && echo "worked: $attempt"
        done
        cat /opt/lib.so"""
    assert output(kubelet, manifest, script) == "library"


def of_image(reference: str, **mount: object) -> Json:
    files = {"name": "files", "image": {"reference": reference, "pullPolicy": "IfNotPresent"}}
    inside = {"name": "data", "mountPath": "/opt/image/data"}
    return pod(
        volumes=[files, {"name": "data", "emptyDir": {}}],
        mounts=[inside, {"name": "files", "mountPath": "/opt/image", **mount}],
    )


def test_an_image_is_mounted_whole_and_read_only_with_other_mounts_in_it(kubelet: Kubelet, tmp_path: Path) -> None:
    (tmp_path / "image/data").mkdir(parents=True)
    (tmp_path / "image/file").write_text("content")
    kubelet.images = {**kubelet.images, "files:1": Image(content=tmp_path / "image")}
    script = (
        "cd /opt/image; ls; cat file; touch data/new; touch new 2>/dev/null || rm file 2>/dev/null || echo; ls data"
    )
    assert output(kubelet, of_image("files:1"), script) == "data\nfile\ncontent\nnew\n"
    assert sorted(path.name for path in (tmp_path / "image").rglob("*")) == ["data", "file"]


@pytest.mark.parametrize(
    ("reference", "mount", "message"),
    [
        ("other:1", {}, "volume files: no image other:1"),
        ("shell", {}, "volume files: no image shell"),
        ("files:1", {"subPath": "data"}, "a sub-path of an image is not supported"),
    ],
)
def test_images_that_cannot_be_mounted(
    kubelet: Kubelet, tmp_path: Path, reference: str, mount: Json, message: str
) -> None:
    kubelet.images = {**kubelet.images, "files:1": Image(content=tmp_path)}
    with pytest.raises(PodFailure, match=message):
        kubelet.start(of_image(reference, **mount))


def test_environment_is_that_of_the_spec_and_the_image(kubelet: Kubelet) -> None:
    kubelet.api.config_maps["team", "gpu"] = {"K": "4147m"}
    manifest = pod(
        env=[
            {"name": "UID_OF_POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
            {"name": "LIMIT", "valueFrom": {"configMapKeyRef": {"name": "gpu", "key": "K"}}},
        ]
    )
    container = kubelet.start(manifest).containers["main"]
    _status, printed = container.exec(["env"]).communicate(timeout=PATIENCE)
    assert sorted(printed.splitlines()) == ["LIMIT=4147m", f"PATH={PATH}", "UID_OF_POD=0123"]
    assert Path(f"/proc/{container.main.pid}/environ").read_text().count("\0") == 3
    _status, printed = container.exec(["env"], {"LIMIT": "1m"}).communicate(timeout=PATIENCE)
    assert "LIMIT=1m" in printed.splitlines()


def test_processes_see_their_container_alone(kubelet: Kubelet) -> None:
    # The shell itself counts: a pipeline's processes would come and go meanwhile.
    printed = output(kubelet, pod(), "hostname; cat /proc/1/comm; set -- /proc/[0-9]*; echo $#; ls -A /tmp /run")
    assert printed.split() == ["pod", "cat", "2", "/run:", "/tmp:"]


def test_projected_files_follow_annotation_and_config_map_while_the_container_runs(kubelet: Kubelet) -> None:
    manifest = pod(volumes=[projected(ANNOTATION, CONFIG_MAP)], mounts=[{"name": "volume", "mountPath": "/limits"}])
    running = kubelet.start(manifest)

    def seen() -> list[str]:
        reader = running.containers["main"].exec(["sh", "-c", "cd /limits; for f in *; do echo $f=$(cat $f); done"])
        return reader.communicate(timeout=PATIENCE)[1].splitlines()

    assert seen() == ["request=first"]
    kubelet.api.config_maps["team", "gpu"] = {"K": "4147m", "other": "not an item"}
    running.manifest["metadata"]["annotations"]["example/request"] = "second"
    kubelet.sync(running)
    assert seen() == ["limit=4147m", "request=second"]
    del running.manifest["metadata"]["annotations"]["example/request"]
    kubelet.sync(running)
    assert seen() == ["limit=4147m", "request="]


def test_sub_path_is_of_the_generation_at_the_start(kubelet: Kubelet) -> None:
    manifest = pod(
        volumes=[projected(ANNOTATION)], mounts=[{"name": "volume", "mountPath": "/request", "subPath": "request"}]
    )
    running = kubelet.start(manifest)
    running.manifest["metadata"]["annotations"]["example/request"] = "second"
    kubelet.sync(running)
    assert running.containers["main"].exec(["cat", "/request"]).communicate(timeout=PATIENCE)[1] == "first"


def test_volumes_lie_where_a_kubelet_puts_them(kubelet: Kubelet, tmp_path: Path) -> None:
    manifest = pod(volumes=[projected(ANNOTATION), {"name": "scratch", "emptyDir": {"sizeLimit": "8Mi"}}])
    running = kubelet.start(manifest)
    volumes = tmp_path / "node/var/lib/kubelet/pods/0123/volumes"
    assert (volumes / "kubernetes.io~projected/volume/request").read_text() == "first"
    assert (volumes / "kubernetes.io~empty-dir/scratch").stat().st_mode & 0o7777 == 0o777
    assert running.volume("scratch") == volumes / "kubernetes.io~empty-dir/scratch"
    kubelet.stop(running)
    assert not volumes.parent.exists()


@pytest.mark.parametrize(
    ("type_", "present", "message"),
    [
        ("File", "file", None),
        ("File", "directory", "hostPath type check failed: /there is not a file"),
        ("File", None, "hostPath type check failed: /there is not a file"),
        ("Directory", None, "hostPath type check failed: /there is not a directory"),
        ("Directory", "file", "hostPath type check failed: /there is not a directory"),
        ("DirectoryOrCreate", None, None),
        ("", None, None),
        ("", "file", None),
        ("Socket", None, "hostPath type Socket is not supported"),
    ],
)
def test_host_path_types(kubelet: Kubelet, type_: str, present: str | None, message: str | None) -> None:
    there = kubelet.root / "there"
    if present == "file":
        there.touch()
    elif present == "directory":
        there.mkdir()
    manifest = pod(
        volumes=[{"name": "host", "hostPath": {"path": "/there", "type": type_}}],
        mounts=[{"name": "host", "mountPath": "/mounted"}],
    )
    if message is None:
        kind = "f" if present == "file" else "d"
        assert output(kubelet, manifest, f"test -{kind} /mounted && echo yes") == "yes\n"
    else:
        with pytest.raises(PodFailure, match=message):
            kubelet.start(manifest)
        assert not list((kubelet.kubelet_root / "pods").iterdir())


def test_pod_waits_for_the_file_that_it_mounts(kubelet: Kubelet) -> None:
    manifest = pod(
        volumes=[{"name": "host", "hostPath": {"path": "/there", "type": "File"}}],
        mounts=[{"name": "host", "mountPath": "/mounted"}],
    )
    (kubelet.root / "new").write_text("late\n")
    timer = threading.Timer(0.5, (kubelet.root / "new").rename, (kubelet.root / "there",))
    timer.start()
    running = kubelet.start(manifest, patience=PATIENCE)
    timer.join()
    assert running.containers["main"].exec(["cat", "/mounted"]).communicate(timeout=PATIENCE)[1] == "late\n"


def test_restarted_container_keeps_its_volumes_and_gets_a_directory_for_a_file_that_went(kubelet: Kubelet) -> None:
    there = kubelet.root / "there"
    there.write_text("file")
    manifest = pod(
        volumes=[
            {"name": "host", "hostPath": {"path": "/there", "type": "File"}},
            {"name": "scratch", "emptyDir": {}},
        ],
        mounts=[{"name": "host", "mountPath": "/mounted"}, {"name": "scratch", "mountPath": "/scratch"}],
    )
    running = kubelet.start(manifest)
    first = running.containers["main"]
    assert first.exec(["sh", "-c", "echo kept >/scratch/file"]).communicate(timeout=PATIENCE)[0] == 0
    there.unlink()
    second = kubelet.restart(running, "main")
    assert not first.main.running
    _, printed = second.exec(["sh", "-c", "cat /scratch/file; test -d /mounted && echo directory"]).communicate()
    assert printed == "kept\ndirectory\n"


def test_a_new_file_in_the_place_of_a_mounted_one_is_not_seen(kubelet: Kubelet) -> None:
    there = kubelet.root / "there"
    there.write_text("old")
    manifest = pod(
        volumes=[{"name": "host", "hostPath": {"path": "/there", "type": "File"}}],
        mounts=[{"name": "host", "mountPath": "/mounted", "readOnly": True}],
    )
    running = kubelet.start(manifest)
    (kubelet.root / "new").write_text("new")
    (kubelet.root / "new").rename(there)
    assert running.containers["main"].exec(["cat", "/mounted"]).communicate(timeout=PATIENCE)[1] == "old"


def test_init_containers_run_first_and_stop_the_pod_when_they_fail(kubelet: Kubelet) -> None:
    manifest = pod(volumes=[{"name": "scratch", "emptyDir": {}}], mounts=[{"name": "scratch", "mountPath": "/scratch"}])
    init = {
        "name": "init",
        "image": "shell",
        "command": ["sh", "-c", "echo ready >/scratch/file"],
        "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
    }
    manifest["spec"]["initContainers"] = [init]
    running = kubelet.start(manifest)
    assert running.containers["main"].exec(["cat", "/scratch/file"]).communicate(timeout=PATIENCE)[1] == "ready\n"
    kubelet.stop(running)
    init["command"] = ["sh", "-c", "echo 'no model' >&2; exit 3"]
    with pytest.raises(PodFailure, match="container init ended with 3: no model"):
        kubelet.start(manifest)


def test_security_context(kubelet: Kubelet) -> None:
    manifest = pod(
        securityContext={
            "runAsUser": 65532,
            "runAsGroup": 65532,
            "runAsNonRoot": True,
            "readOnlyRootFilesystem": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
        volumes=[{"name": "scratch", "emptyDir": {}}],
        mounts=[{"name": "scratch", "mountPath": "/made/here"}],
    )
    script = """
        id -u; id -g; touch /made/here/file && echo written; touch /file 2>&1 | grep -o 'Read-only.*'
        grep -E 'CapBnd|NoNewPrivs' /proc/self/status | tr -d '\\t'"""
    assert output(kubelet, manifest, script).splitlines() == [
        "65532", "65532", "written", "Read-only file system", "CapBnd:0000000000000000", "NoNewPrivs:1",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image": "absent"}, "ErrImagePull: container main: this node has no image absent"),
        ({"command": ["/absent"]}, "RunContainerError: container main: exec /absent: not found in the container"),
        ({"securityContext": {"privileged": True}}, "securityContext of main: privileged is not supported"),
        ({"volumeMounts": [{"name": "none", "mountPath": "/x"}]}, "volume none is not in the pod"),
    ],
)
def test_a_container_that_cannot_start_says_why_and_leaves_nothing(
    kubelet: Kubelet, change: Json, message: str
) -> None:
    with pytest.raises(PodFailure, match=message):
        kubelet.start(pod(**change))
    assert not list((kubelet.kubelet_root / "pods").iterdir())


def test_exit_status_and_signals(kubelet: Kubelet) -> None:
    container = kubelet.start(pod()).containers["main"]
    assert container.exec(["sh", "-c", "exit 7"]).wait(PATIENCE) == 7
    assert container.exec(["sh", "-c", "kill -SEGV $$"]).wait(PATIENCE) == 128 + signal.SIGSEGV
    sleeper = container.exec(["sleep", "1000"])
    sleeper.terminate()
    assert sleeper.wait(PATIENCE) == 128 + signal.SIGTERM
    child = container.exec(["sh", "-c", "sleep 1000 & echo $!; wait"])
    assert child.stdout.readline() != ""
    container.stop()
    assert child.wait(PATIENCE) == 128 + signal.SIGKILL
    assert not container.main.running


def test_the_machine_is_left_as_it_was(tmp_path: Path) -> None:
    name = f"isolator-test-{os.getpid()}"
    with Kubelet(tmp_path / "node", Api(), {"shell": Image(("/bin/cat",))}) as kubelet:
        manifest = pod(
            volumes=[{"name": "scratch", "emptyDir": {}}],
            mounts=[{"name": "scratch", "mountPath": f"/usr/local/{name}/containers"}],
        )
        output(kubelet, manifest, f"touch /etc/{name} /var/lib/{name}; rm /etc/passwd")
        assert mounts_below(tmp_path) == []
    assert mounts_below(tmp_path) == []
    for changed in ("/etc", "/var/lib", "/usr/local"):
        assert not (Path(changed) / name).exists()
    assert Path("/etc/passwd").exists()
    assert [path for path in (tmp_path / "node").rglob("*") if path.is_file()] == []


OWNER = """
import sys, time
from pathlib import Path
from tests.node.kubelet import Kubelet
from tests.node.objects import Api
from tests.node.runtime import Image
import json
with Kubelet(Path(sys.argv[1]), Api(), {"shell": Image(("/bin/sleep", "1000"))}) as kubelet:
    container = kubelet.start(json.loads(sys.argv[2])).containers["main"]
    other = container.exec(["sleep", "1000"])
    print(container.main.pid, other.pid, flush=True)
    time.sleep(1000)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT], ids=lambda number: signal.Signals(number).name)
def test_containers_end_with_their_owner_however_it_ends(tmp_path: Path, number: signal.Signals) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path / "node"), json.dumps(pod())],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert owner.stdout is not None
    with owner.stdout:
        pids = [int(word) for word in owner.stdout.readline().split()]
    assert len(pids) == 2
    os.kill(owner.pid, number)
    owner.wait(PATIENCE)
    deadline = time.monotonic() + PATIENCE
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline, "a process of the container outlived its owner"
        time.sleep(0.05)
    assert mounts_below(tmp_path) == []
