"""A node of the test cluster: binds pods of chosen namespaces to itself, runs them, reports what a kubelet reports.

Containers are run by `tests.node`; this module stands between it and a real API server. Each pod has a network
namespace and an address of its own, Secrets and service account tokens come from the API, names of Services are in
/etc/hosts, and readiness is what the pod's own probes say.
"""

import base64
import contextlib
import datetime
import http.client
import itertools
import platform
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from tests.cluster import network
from tests.cluster.client import Cluster, Object, path_of, wait_until
from tests.cluster.control_plane import ControlPlane
from tests.cluster.network import Network
from tests.node import projection
from tests.node.kubelet import Kubelet, RunningPod
from tests.node.objects import Api, PodFailure
from tests.node.runtime import Image

ROOT = Path(__file__).parents[2]
PROGRAMS_MOUNT, PYTHON_MOUNT, SOURCE_MOUNT = "/opt/isolator", "/opt/python", "/opt/source"
IMAGE_CONTENT = {
    PYTHON_MOUNT: Path(sys.base_prefix),
    SOURCE_MOUNT: ROOT,
    f"/opt/kai-resource-isolator/{platform.machine()}": ROOT / "native/hami-core/build",
}
"""What images bring, by its path in containers."""

POD_NETWORK = "198.19.0"
INTERVAL_SECONDS = 0.2
STOP_SECONDS = 300
"""A pass asks the API server several times, and each answer may take as long as `client.CALL_SECONDS`."""

PROBE_SECONDS = 10
TOKEN_SECONDS = 3600
_serials = itertools.count()


def service_image(name: str) -> Image:
    """An image with one of this project's services, laid out as its Dockerfile does."""
    return Image((f"{PROGRAMS_MOUNT}/bin/isolator-{name}",))


def _write_programs(directory: Path) -> None:
    """What images have in /opt/isolator/bin: a Python with the tree's sources, and the services' programs."""
    python = f"python{sys.version_info.major}.{sys.version_info.minor}"
    sources = [f"{SOURCE_MOUNT}/{path.relative_to(ROOT)}" for path in sorted(ROOT.glob("services/*/src"))]
    sources += [f"{SOURCE_MOUNT}/packages/core/src", f"{SOURCE_MOUNT}/.venv/lib/{python}/site-packages"]
    # The loader would look for libpython where Python was built, which other users may not enter.
    start = (
        f"#!/bin/sh\nexport PYTHONPATH={':'.join(sources)} PYTHONDONTWRITEBYTECODE=1"
        f" LD_LIBRARY_PATH={PYTHON_MOUNT}/lib\nexec {PYTHON_MOUNT}/bin/{python} "
    )
    directory.mkdir(parents=True)
    programs = {f"isolator-{path.name}": f"-m isolator_{path.name} " for path in (ROOT / "services").iterdir()}
    for name, arguments in {"python": "", **programs}.items():
        (directory / name).write_text(f'{start}{arguments}"$@"\n')
        (directory / name).chmod(0o755)


@dataclass
class _Pod:
    """A pod of this node that has been started."""

    stored: Object
    running: RunningPod
    network: Network
    restarts: int = 0
    not_before: float = 0
    ends_by: float = 0
    reported: Object = field(default_factory=dict)


class Node:
    """A node named `name` that runs the pods of `namespaces`, for the time of a `with` block. Needs root."""

    def __init__(
        self,
        cluster: Cluster,
        plane: ControlPlane,
        root: Path,
        images: Mapping[str, Image],
        namespaces: Sequence[str],
        name: str = "node",
        labels: Mapping[str, str] | None = None,
    ) -> None:
        self.cluster = cluster
        self.plane = plane
        self.name = name
        self.root = root
        self.namespaces = namespaces
        self.labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", **(labels or {})}
        self.kubelet = Kubelet(root, Api(), images)
        self.failures: list[str] = []
        self._pods: dict[str, _Pod] = {}
        self._tokens: dict[Path, tuple[float, bytes]] = {}
        self._addresses = itertools.cycle(range(2, 255))
        self._stop = threading.Event()
        # A pass that never ends must not keep the test run from ending.
        self._thread = threading.Thread(target=self._loop, name=f"node {name}", daemon=True)

    @property
    def _manifest(self) -> Object:
        return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.name, "labels": self.labels}}

    def __enter__(self) -> "Node":
        self.root.chmod(0o755)
        for mount, source in IMAGE_CONTENT.items():
            link = self.root / mount.lstrip("/")
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(source)
        _write_programs(self.root / PROGRAMS_MOUNT.lstrip("/") / "bin")
        self.cluster.create(self._manifest).ok()
        capacity = {"cpu": "64", "memory": "256Gi", "pods": "110"}
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}
        status = {"status": {"capacity": capacity, "allocatable": capacity, "conditions": [ready]}}
        self._patch(path_of(self._manifest) + "/status", status)
        # The controller manager taints nodes until a cloud or a kubelet says that they are ready.
        self._patch(path_of(self._manifest), {"spec": {"taints": None}})
        with self.plane.network.entered():
            network.ip("link", "add", "pods", "type", "bridge")
            network.ip("address", "add", f"{POD_NETWORK}.1/24", "dev", "pods")
            network.ip("link", "set", "pods", "up")
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(STOP_SECONDS)
        if self._thread.is_alive():
            raise TimeoutError(f"node {self.name} did not end its pass within {STOP_SECONDS} s; it is at\n{self._at()}")
        for pod in list(self._pods.values()):
            self._end(pod)
            # Only a kubelet lets a pod that it had go.
            self.cluster.delete(pod.stored)
        with self.plane.network.entered():
            network.ip("link", "delete", "pods")
        self.cluster.delete(self._manifest)

    def _at(self) -> str:
        """Where the thread that runs pods is."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        return "".join(traceback.format_stack(frame)) if frame else "its end"

    def logs(self) -> str:
        """What every running container has written, for a failed test's report."""
        found = [
            f"== {pod.stored['metadata']['name']}/{name}\n{container.errors()}"
            for pod in self._pods.values()
            for name, container in pod.running.containers.items()
        ]
        return "\n".join([*found, *dict.fromkeys(self.failures)])

    def pods(self, component: str) -> list[_Pod]:
        """Running pods of a component of the chart."""
        label = "app.kubernetes.io/component"
        return [pod for pod in self._pods.values() if pod.stored["metadata"]["labels"].get(label) == component]

    def only_pod(self, component: str) -> _Pod:
        """The one pod of a component, once those that a rollout replaced have ended: helm waits for new ones only."""
        wait_until(lambda: len(self.pods(component)) == 1, f"single pod of {component}")
        (pod,) = self.pods(component)
        return pod

    def _patch(self, path: str, body: Object) -> None:
        self.cluster.call("PATCH", path, body, content_type="application/strategic-merge-patch+json").ok()

    def _loop(self) -> None:
        while not self._stop.wait(INTERVAL_SECONDS):
            try:
                self._pass()
            except (AssertionError, OSError, http.client.HTTPException):
                # The API server may be away; the next pass sees what is then.
                self.failures.append(traceback.format_exc())

    def _pass(self) -> None:
        stored: dict[str, Object] = {}
        for namespace in self.namespaces:
            answer = self.cluster.call("GET", f"/api/v1/namespaces/{namespace}/pods").ok()
            stored |= {item["metadata"]["uid"]: item | {"kind": "Pod"} for item in answer["items"]}
        for uid, pod in list(self._pods.items()):
            if uid not in stored:
                self._end(pod)
        here = [manifest for manifest in stored.values() if manifest["spec"].get("nodeName") == self.name]
        taken_ports = {port for manifest in here for port in _host_ports(manifest)}
        for uid, manifest in stored.items():
            if uid in self._pods:
                self._keep(self._pods[uid], manifest)
            elif "deletionTimestamp" in manifest["metadata"]:
                if manifest["spec"].get("nodeName") == self.name:
                    self.cluster.delete(manifest)
            elif manifest.get("status", {}).get("phase") in ("Succeeded", "Failed"):
                continue
            elif not manifest["spec"].get("nodeName"):
                self._bind(manifest, taken_ports)
            elif manifest["spec"]["nodeName"] == self.name:
                self._start(manifest)

    def _bind(self, manifest: Object, taken_ports: set[int]) -> None:
        selector = manifest["spec"].get("nodeSelector", {})
        fits = all(self.labels.get(key) == value for key, value in selector.items())
        if fits and not _host_ports(manifest) & taken_ports:
            taken_ports |= _host_ports(manifest)
            metadata = {key: manifest["metadata"][key] for key in ("name", "namespace")}
            binding = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata}
            target = {"apiVersion": "v1", "kind": "Node", "name": self.name}
            self.cluster.call("POST", path_of(manifest) + "/binding", binding | {"target": target}).ok()

    def _start(self, manifest: Object) -> None:
        local = self._localized(manifest)
        where = self.plane.network if manifest["spec"].get("hostNetwork") else self._new_network()
        try:
            with where.entered():
                running = self.kubelet.start(local)
        except BaseException as error:
            self._drop(where)
            if not isinstance(error, PodFailure):
                raise
            self.failures.append(f"{manifest['metadata']['name']}: {error}")
            return
        self._pods[manifest["metadata"]["uid"]] = _Pod(manifest, running, where)

    def _new_network(self) -> Network:
        """A pod's network: a namespace joined to the node's bridge."""
        taken = {pod.network.address for pod in self._pods.values()}
        # In turn, also after many starts that failed: an address that was just given up may still be asked for.
        number = next(number for number in self._addresses if f"{POD_NETWORK}.{number}" not in taken)
        serial = next(_serials)
        where = Network(f"{POD_NETWORK}.{number}", network.of_pod(self.plane.network, serial))
        network.ip("netns", "add", where.namespace)
        try:
            # Not named after the address: the kernel removes a namespace and its links later than it says.
            self._connect(where, f"pod{serial}")
        except BaseException:
            self._drop(where)
            raise
        return where

    def _drop(self, where: Network) -> None:
        """Remove a pod's network, unless it is the node's own."""
        if where != self.plane.network:
            network.ip("netns", "delete", where.namespace)

    def _connect(self, where: Network, link: str) -> None:
        node = self.plane.network.namespace
        network.ip("-n", node, "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", where.namespace)
        network.ip("-n", node, "link", "set", link, "master", "pods", "up")
        network.ip("-n", where.namespace, "link", "set", "lo", "up")
        network.ip("-n", where.namespace, "link", "set", "eth0", "up")
        network.ip("-n", where.namespace, "address", "add", f"{where.address}/24", "dev", "eth0")
        network.ip("-n", where.namespace, "route", "add", "default", "via", f"{POD_NETWORK}.1")

    def _let_end(self, pod: _Pod) -> None:
        """SIGTERM at first, the end once every container has ended or its time is over; other pods go on meanwhile."""
        if not pod.ends_by:
            pod.ends_by = time.monotonic() + pod.stored["spec"].get("terminationGracePeriodSeconds", 30)
            for container in pod.running.containers.values():
                container.main.terminate()
        if time.monotonic() > pod.ends_by or not any(c.main.running for c in pod.running.containers.values()):
            self._end(pod)
            self.cluster.delete(pod.stored)

    def _end(self, pod: _Pod) -> None:
        self.kubelet.stop(pod.running)
        self._pods.pop(pod.stored["metadata"]["uid"], None)
        self._drop(pod.network)
        shutil.rmtree(self._directory(pod.stored), ignore_errors=True)

    def _keep(self, pod: _Pod, manifest: Object) -> None:
        pod.stored = manifest
        if "deletionTimestamp" in manifest["metadata"]:
            self._let_end(pod)
            return
        self._localized(manifest)
        ended = {name: c.main.wait() for name, c in pod.running.containers.items() if not c.main.running}
        if ended and manifest["spec"].get("restartPolicy", "Always") == "Always" and time.monotonic() >= pod.not_before:
            self._restart(pod, list(ended))
            ended = {}
        self._report(pod, ended)

    def _restart(self, pod: _Pod, ended: Sequence[str]) -> None:
        """Start containers anew; the next time a second later than this time, as a kubelet backs off."""
        for name in ended:
            pod.restarts += 1
            pod.not_before = time.monotonic() + pod.restarts
            self.failures.append(
                f"{pod.stored['metadata']['name']}/{name} ended:\n{pod.running.containers[name].errors()}"
            )
            with pod.network.entered():
                self.kubelet.restart(pod.running, name)

    def _report(self, pod: _Pod, ended: Mapping[str, int]) -> None:
        spec = pod.stored["spec"]
        over = len(ended) == len(spec["containers"]) and spec.get("restartPolicy", "Always") != "Always"
        phase = "Running" if not over else "Failed" if any(ended.values()) else "Succeeded"
        statuses = []
        for container in spec["containers"]:
            name = container["name"]
            ready = name not in ended and self._probe(pod, container)
            state: Object = {"running": {}}
            if name in ended:
                state = {"terminated": {"exitCode": ended[name], "reason": "Error" if ended[name] else "Completed"}}
            statuses.append(
                {"name": name, "image": container["image"], "imageID": "", "ready": ready, "started": True,
                 "restartCount": pod.restarts, "state": state}
            )  # fmt: skip
        all_ready = str(all(status["ready"] for status in statuses))
        conditions = [{"type": kind, "status": all_ready} for kind in ("Ready", "ContainersReady")]
        conditions.append({"type": "Initialized", "status": "True"})
        address = pod.network.address
        status: Object = {
            "phase": phase, "podIP": address, "podIPs": [{"ip": address}], "hostIP": f"{POD_NETWORK}.1",
            "containerStatuses": statuses, "conditions": conditions,
        }  # fmt: skip
        if status != pod.reported:
            now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            stamped = [condition | {"lastTransitionTime": now} for condition in conditions]
            path = path_of(pod.stored) + "/status"
            self._patch(path, {"status": status | {"conditions": stamped, "startTime": now}})
            pod.reported = status

    def _probe(self, pod: _Pod, container: Object) -> bool:
        """Whether the container's readiness probe, if it has one, succeeds now."""
        probe = container.get("readinessProbe")
        if probe is None:
            return True
        if "exec" in probe:
            process = pod.running.containers[container["name"]].exec(probe["exec"]["command"])
            try:
                return process.communicate(timeout=PROBE_SECONDS)[0] == 0
            except subprocess.TimeoutExpired:
                process.kill()
                return False
        if "httpGet" in probe:
            return self._http_probe(pod, container, probe["httpGet"])
        # gRPC health: that the port accepts is as much as this node looks at.
        port = probe["grpc"]["port"] if "grpc" in probe else _port(container, probe["tcpSocket"]["port"])
        with self.plane.network.entered(), contextlib.suppress(OSError):
            socket.create_connection((pod.network.address, port), timeout=1).close()
            return True
        return False

    def _http_probe(self, pod: _Pod, container: Object, get: Object) -> bool:
        address, port = pod.network.address, _port(container, get["port"])
        with self.plane.network.entered(), contextlib.suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection(address, port, timeout=1)
            if get.get("scheme") == "HTTPS":
                # As the kubelet does, without a look at the certificate.
                context = ssl.create_default_context()
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
                connection = http.client.HTTPSConnection(address, port, timeout=1, context=context)
            # Closed also when the probe takes too long: a socket that is left would fail a later test.
            with contextlib.closing(connection):
                connection.request("GET", get["path"])
                return 200 <= connection.getresponse().status < 400
        return False

    def _directory(self, manifest: Object) -> Path:
        """Where this module keeps what it made for a pod, below the node's root."""
        return self.root / "var/lib/test-node" / str(manifest["metadata"]["uid"])

    def _localized(self, manifest: Object) -> Object:
        """The pod as `tests.node` can run it: what only the API can tell has become files on the node.

        Called again for a running pod, it brings those files up to date.
        """
        directory = self._directory(manifest)
        spec = manifest["spec"]
        volumes = []
        namespace = manifest["metadata"]["namespace"]
        for volume in spec.get("volumes", []):
            target = directory / volume["name"]
            if "secret" in volume:
                _write_files(target, self._secret(namespace, volume["secret"]))
                volumes.append(self._host_path(volume["name"], target))
            elif any("serviceAccountToken" in source for source in volume.get("projected", {}).get("sources", [])):
                _write_files(target, self._token_files(manifest, target, volume["projected"]["sources"]))
                volumes.append(self._host_path(volume["name"], target))
            else:
                self._fetch_config_maps(namespace, volume)
                volumes.append(volume)
        directory.mkdir(parents=True, exist_ok=True)
        # In place, since the container's mount holds the inode.
        (directory / "hosts").open("a").close()
        _write_in_place(directory / "hosts", self._hosts(namespace))
        added = [
            (self._host_path("test-hosts", directory / "hosts"), "/etc/hosts"),
            *(
                ({"name": f"test-image-{number}", "hostPath": {"path": mount}}, mount)
                for number, mount in enumerate((PROGRAMS_MOUNT, *IMAGE_CONTENT))
            ),
        ]
        mounts = [{"name": volume["name"], "mountPath": mount, "readOnly": True} for volume, mount in added]
        port = self.plane.url.rpartition(":")[2]
        variables = [
            {"name": "KUBERNETES_SERVICE_HOST", "value": self.plane.network.address},
            {"name": "KUBERNETES_SERVICE_PORT", "value": port},
        ]
        containers = [
            container
            | {"volumeMounts": [_plain_mount(m) for m in container.get("volumeMounts", [])] + mounts}
            | {"env": variables + container.get("env", [])}
            for container in spec["containers"]
        ]
        volumes += [volume for volume, _mount in added]
        return manifest | {"spec": spec | {"volumes": volumes, "containers": containers}}

    def _host_path(self, name: str, path: Path) -> Object:
        return {"name": name, "hostPath": {"path": f"/{path.relative_to(self.root)}"}}

    def _secret(self, namespace: str, source: Object) -> dict[str, bytes]:
        reference = {"kind": "Secret", "metadata": {"name": source["secretName"], "namespace": namespace}}
        answer = self.cluster.get(reference)
        if answer.status == 404 and source.get("optional"):
            return {}
        return {key: base64.b64decode(value) for key, value in answer.ok().get("data", {}).items()}

    def _token_files(self, manifest: Object, target: Path, sources: Sequence[Object]) -> dict[str, bytes]:
        """Files of a projected service account volume; a token that is there is kept for half its life."""
        namespace = manifest["metadata"]["namespace"]
        account = {"name": manifest["spec"]["serviceAccountName"], "namespace": namespace}
        files: dict[str, bytes] = {}
        for source in sources:
            if "serviceAccountToken" in source:
                path = source["serviceAccountToken"]["path"]
                issued, token = self._tokens.get(target, (0.0, b""))
                if time.monotonic() - issued < TOKEN_SECONDS / 2 and token:
                    files[path] = token
                    continue
                request: Object = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"}
                bound = {"kind": "Pod", "apiVersion": "v1", **_name_and_uid(manifest)}
                request["spec"] = {"expirationSeconds": TOKEN_SECONDS, "boundObjectRef": bound}
                account_path = path_of({"kind": "ServiceAccount", "metadata": account})
                answer = self.cluster.call("POST", f"{account_path}/token", request).ok()
                files[path] = answer["status"]["token"].encode()
                self._tokens[target] = (time.monotonic(), files[path])
            elif "configMap" in source:
                reference = {"name": source["configMap"]["name"], "namespace": namespace}
                data = self.cluster.get({"kind": "ConfigMap", "metadata": reference}).ok()["data"]
                files |= {item["path"]: data[item["key"]].encode() for item in source["configMap"]["items"]}
            elif "downwardAPI" in source:
                files["namespace"] = namespace.encode()
        return files

    def _fetch_config_maps(self, namespace: str, volume: Object) -> None:
        sources = [volume, *volume.get("projected", {}).get("sources", [])]
        for name in [source["configMap"]["name"] for source in sources if "configMap" in source]:
            answer = self.cluster.get({"kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace}})
            if answer.status == 200:
                self.kubelet.api.config_maps[namespace, name] = answer.body.get("data", {})

    def _hosts(self, namespace: str) -> str:
        """What the cluster's DNS would say of the headless Services of a namespace."""
        slices = self.cluster.call("GET", f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices").ok()
        lines = ["127.0.0.1 localhost"]
        for item in slices["items"]:
            name = item["metadata"]["labels"].get("kubernetes.io/service-name")
            for endpoint in item.get("endpoints") or []:
                if endpoint["conditions"].get("ready"):
                    names = f"{name}.{namespace}.svc {name}.{namespace}.svc.cluster.local {name}"
                    lines += [f"{address} {names}" for address in endpoint["addresses"]]
        return "\n".join(lines) + "\n"


def _host_ports(manifest: Object) -> set[int]:
    """Ports of the node that a pod takes: the scheduler places no two pods that want the same one."""
    containers = manifest["spec"]["containers"]
    return {port["hostPort"] for item in containers for port in item.get("ports", []) if port.get("hostPort")}


def _name_and_uid(manifest: Object) -> dict[str, str]:
    return {key: manifest["metadata"][key] for key in ("name", "uid")}


def _plain_mount(mount: Object) -> Object:
    """A mount without what the API server fills in and this node does not need."""
    return {key: value for key, value in mount.items() if key not in ("recursiveReadOnly", "mountPropagation")}


def _port(container: Object, port: int | str) -> int:
    if isinstance(port, int):
        return port
    return next(int(item["containerPort"]) for item in container["ports"] if item["name"] == port)


def _write_in_place(path: Path, text: str) -> None:
    if path.read_text() != text:
        path.write_text(text)


def _write_files(target: Path, files: Mapping[str, bytes]) -> None:
    target.mkdir(parents=True, exist_ok=True)
    projection.write(target, {name: projection.File(content, 0o644) for name, content in files.items()})
