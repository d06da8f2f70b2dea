"""Takes a pod as the API server stores it and has a container runtime run it, with the requests that a kubelet makes.

Sources: k8s.io/kubernetes v1.34, pkg/kubelet/kubelet_pods.go (makeMounts), pkg/kubelet/kuberuntime
(kuberuntime_sandbox.go, kuberuntime_container.go, kuberuntime_container_linux.go, security_context.go),
pkg/volume/util/subpath. Volumes and environment are those of `tests.node`.
"""

import base64
import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.containerd.containerd import Containerd
from tests.containerd.cri import Json
from tests.node import environment, volumes
from tests.node.objects import Api, only
from tests.node.runtime import Bind

WAIT_SECONDS = 100.0
NAMESPACES = {"network": "NODE", "pid": "CONTAINER", "ipc": "POD"}
"""The network of the node, as `hostNetwork` has it: no network plugin is needed."""


@dataclass(frozen=True)
class Ended:
    """How a program in a container ended."""

    status: int
    output: str
    errors: str


@dataclass
class Pod:
    """A pod whose containers run."""

    manifest: Json
    directory: Path
    sandbox: str
    containers: dict[str, str] = field(default_factory=dict)
    """The runtime's identifier by the container's name."""

    def volume(self, name: str) -> Path:
        """Directory of a volume that the kubelet made."""
        (found,) = (self.directory / "volumes").glob(f"*/{name}")
        return found


class Kubelet:
    """A node with a runtime.

    `images` tells where what a pod calls an image is pulled from; `binds` are what a GPU's runtime adds to containers.
    """

    def __init__(
        self, root: Path, api: Api, runtime: Containerd, images: Mapping[str, str], binds: Sequence[Bind] = ()
    ) -> None:
        self.root = root
        self.api = api
        self.runtime = runtime
        self.images = images
        self.binds = binds
        self._attempts = itertools.count()

    @contextmanager
    def running(self, manifest: Json) -> Iterator[Pod]:
        """Run a pod for the length of a block. Raises Refused and PodFailure."""
        pod = self.start(manifest)
        try:
            yield pod
        finally:
            self.stop(pod)

    def start(self, manifest: Json) -> Pod:
        """Start a pod; where that fails nothing of it stays in the runtime. Raises Refused and PodFailure."""
        metadata = manifest["metadata"]
        directory = self.root / "pods" / metadata["uid"]
        (directory / "logs").mkdir(parents=True)
        sandbox_config = self._sandbox(manifest, directory)
        sandbox = self.runtime.cri.runtime("RunPodSandbox", {"config": sandbox_config})["pod_sandbox_id"]
        pod = Pod(manifest, directory, sandbox)
        try:
            for volume in manifest["spec"].get("volumes", []):
                if volumes.kind(volume) != "image":
                    volumes.set_up(self.api, self.root / "host", directory, manifest, volume, {})
            for container in manifest["spec"]["containers"]:
                self._start(pod, container, sandbox_config)
        except BaseException:
            self.stop(pod)
            raise
        return pod

    def stop(self, pod: Pod) -> None:
        """End a pod. The kubelet's directory of it stays."""
        for method in ("StopPodSandbox", "RemovePodSandbox"):
            self.runtime.cri.runtime(method, {"pod_sandbox_id": pod.sandbox})

    def sync(self, pod: Pod) -> None:
        """Bring the files of the pod's projected volumes up to date with its manifest and with the ConfigMaps."""
        for volume in pod.manifest["spec"]["volumes"]:
            if volumes.kind(volume) not in (*volumes.NOT_MADE, "emptyDir"):
                volumes.set_up(self.api, self.root / "host", pod.directory, pod.manifest, volume, {})

    def restart(self, pod: Pod, name: str) -> None:
        """End a container and start it anew in the same pod."""
        cri, identifier = self.runtime.cri, pod.containers.pop(name)
        cri.runtime("StopContainer", {"container_id": identifier, "timeout": "0"})
        cri.runtime("RemoveContainer", {"container_id": identifier})
        (container,) = (one for one in pod.manifest["spec"]["containers"] if one["name"] == name)
        self._start(pod, container, self._sandbox(pod.manifest, pod.directory))

    def run(self, pod: Pod, container: str, *command: str) -> Ended:
        """Run a program in a container, as `kubectl exec` does, and wait for its end."""
        request = {"container_id": pod.containers[container], "cmd": list(command), "timeout": str(int(WAIT_SECONDS))}
        told = self.runtime.cri.runtime("ExecSync", request)
        output, errors = (base64.b64decode(told[name]).decode() for name in ("stdout", "stderr"))
        return Ended(told["exit_code"], output, errors)

    def said(self, pod: Pod, container: str, text: str) -> str:
        """What a container's first process has printed, once `text` is in it; AssertionError if it ends before."""
        log = pod.directory / "logs" / f"{container}.log"
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            # A line is: time, stream, tag, text (k8s.io/kubernetes: pkg/kubelet/kuberuntime/logs).
            printed = "".join(f"{line.split(' ', 3)[3]}\n" for line in log.read_text().splitlines())
            if text in printed:
                return printed
            request = {"container_id": pod.containers[container]}
            state = self.runtime.cri.runtime("ContainerStatus", request)["status"]
            assert state["state"] == "CONTAINER_RUNNING", (state, printed)
            assert time.monotonic() < deadline, printed
            time.sleep(0.1)

    def pull(self, reference: str) -> str:
        """Pull what a pod calls `reference`. Returns what the runtime calls it."""
        request = {"image": {"image": self.images[reference]}}
        return str(self.runtime.cri.image("PullImage", request)["image_ref"])

    def _sandbox(self, manifest: Json, directory: Path) -> Json:
        metadata = manifest["metadata"]
        return {
            "metadata": {"name": metadata["name"], "uid": metadata["uid"], "namespace": metadata["namespace"]},
            "log_directory": str(directory / "logs"),
            "linux": {
                "cgroup_parent": f"{self.runtime.cgroup}/pod{metadata['uid']}",
                "security_context": {"namespace_options": NAMESPACES},
            },
        }

    def _start(self, pod: Pod, container: Json, sandbox_config: Json) -> None:
        cri, name = self.runtime.cri, container["name"]
        variables = environment.resolve(self.api, pod.manifest, container)
        security = {**pod.manifest["spec"].get("securityContext", {}), **container.get("securityContext", {})}
        image = self.pull(container["image"])
        config = {
            "metadata": {"name": name, "attempt": next(self._attempts)},
            "image": {"image": image, "user_specified_image": container["image"]},
            "command": [environment.expand(word, variables) for word in container.get("command", [])],
            "args": [environment.expand(word, variables) for word in container.get("args", [])],
            "envs": [{"key": key, "value": value} for key, value in variables.items()],
            "mounts": self._mounts(pod, container, variables),
            "log_path": f"{name}.log",
            "linux": {"security_context": _security(name, security)},
        }
        request = {"pod_sandbox_id": pod.sandbox, "config": config, "sandbox_config": sandbox_config}
        identifier = cri.runtime("CreateContainer", request)["container_id"]
        cri.runtime("StartContainer", {"container_id": identifier})
        pod.containers[name] = identifier

    def _mounts(self, pod: Pod, container: Json, variables: dict[str, str]) -> list[Json]:
        """Mounts in the order of the spec."""
        by_name = {volume["name"]: volume for volume in pod.manifest["spec"].get("volumes", [])}
        found = []
        for index, mount in enumerate(container.get("volumeMounts", [])):
            volume = by_name[mount["name"]]
            if volumes.kind(volume) == "image":
                found.append(self._image_mount(mount, volume["image"]))
                continue
            (bind,) = volumes.binds(
                self.root / "host", pod.directory, pod.manifest, container | {"volumeMounts": [mount]}, variables, {}
            )
            source = bind.source
            if mount.get("subPath") or mount.get("subPathExpr"):
                source = self._bound(pod, container["name"], mount["name"], index, source)
            found.append(_mount(bind.target, source, read_only=bind.read_only))
        return found + [_mount(bind.target, bind.source, read_only=bind.read_only) for bind in self.binds]

    def _image_mount(self, mount: Json, source: Json) -> Json:
        only(f"mount {mount['mountPath']}", mount, "name", "mountPath", "readOnly", "subPath")
        image = {"image": self.pull(source["reference"]), "user_specified_image": source["reference"]}
        return {
            "container_path": mount["mountPath"],
            "image": image,
            "image_sub_path": mount.get("subPath", ""),
            "readonly": True,
        }

    def _bound(self, pod: Pod, container: str, volume: str, index: int, source: Path) -> Path:
        """Bind a sub-path where the kubelet has it, so that it stays what it was at the container's start."""
        target = pod.directory / "volume-subpaths" / volume / container / str(index)
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            target.mkdir(exist_ok=True)
        else:
            target.touch()
        self.runtime.bind(source, target)
        return target


def _mount(target: str, source: Path, *, read_only: bool) -> Json:
    return {"container_path": target, "host_path": str(source), "readonly": read_only}


def _security(name: str, security: Json) -> Json:
    only(
        f"securityContext of {name}", security,
        "runAsUser", "runAsNonRoot", "readOnlyRootFilesystem", "allowPrivilegeEscalation", "capabilities",
        "seccompProfile",
    )  # fmt: skip
    capabilities = security.get("capabilities", {})
    profile = security.get("seccompProfile", {"type": "Unconfined"})["type"]
    return {
        "namespace_options": NAMESPACES,
        "run_as_user": {"value": str(security.get("runAsUser", 0))},
        "readonly_rootfs": security.get("readOnlyRootFilesystem", False),
        "no_new_privs": not security.get("allowPrivilegeEscalation", True),
        "capabilities": {
            "add_capabilities": capabilities.get("add", []),
            "drop_capabilities": capabilities.get("drop", []),
        },
        "seccomp": {"profile_type": profile},
    }
