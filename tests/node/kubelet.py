"""The kubelet of a test node: takes a pod as the API server stores it and runs its containers on this machine."""

import contextlib
import shutil
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from tests.node import environment, nvidia, volumes
from tests.node.objects import Api, Json, PodFailure, only, unsupported
from tests.node.runtime import ADDABLE, CAPABILITIES, Container, ContainerSpec, Credentials, Image, RuntimeFailure

KUBELET_DIRECTORY = "var/lib/kubelet"
RETRY_SECONDS = 0.1
INIT_SECONDS = 300
"""A kubelet waits for ever for an init container; whoever waits for a test does not."""


@dataclass
class RunningPod:
    """A pod that has started."""

    manifest: Json
    directory: Path
    """`<kubelet root>/pods/<uid>`."""
    containers: dict[str, Container]

    @property
    def uid(self) -> str:
        return str(self.manifest["metadata"]["uid"])

    def volume(self, name: str) -> Path:
        """Directory of a volume of this pod below the kubelet's directory."""
        (found,) = (self.directory / "volumes").glob(f"*/{name}")
        return found


class Kubelet:
    """A node. Everything that belongs to it lies below `root`; leaving the `with` block ends every container.

    `root` stands for the node's root file system: `hostPath` volumes and `var/lib/kubelet` are below it.
    `images` is what there is to pull, by the name that a container's `image` says.
    """

    def __init__(self, root: Path, api: Api, images: Mapping[str, Image], driver: nvidia.Driver | None = None) -> None:
        self.root = root.resolve()
        self.api = api
        self.images = images
        self.driver = driver
        self.kubelet_root = self.root / KUBELET_DIRECTORY
        self.pods: dict[str, RunningPod] = {}
        self.kubelet_root.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> "Kubelet":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.ExitStack() as stack:
            for pod in self.pods.values():
                stack.callback(self.stop, pod)

    def start(self, manifest: Json, patience: float = 0) -> RunningPod:
        """Start a pod: volumes, init containers one after another, then the containers.

        A volume that cannot be set up and a container that cannot be configured are tried again for `patience`
        seconds, as a kubelet does for ever. Raises PodFailure with the last reason.
        """
        uid = manifest["metadata"]["uid"]
        if uid in self.pods:
            raise ValueError(f"pod {uid} is running")
        deadline = time.monotonic() + patience
        pod = RunningPod(manifest, self.kubelet_root / "pods" / uid, {})
        while True:
            try:
                self._start(pod)
            except BaseException as error:
                self._end(pod)
                if not isinstance(error, PodFailure) or time.monotonic() >= deadline:
                    raise
            else:
                self.pods[uid] = pod
                return pod
            time.sleep(RETRY_SECONDS)

    def sync(self, pod: RunningPod) -> None:
        """Bring the files of the pod's projected volumes up to date with its manifest and with the ConfigMaps."""
        for volume in pod.manifest["spec"].get("volumes", []):
            if volumes.kind(volume) not in (*volumes.NOT_MADE, "emptyDir"):
                volumes.set_up(self.api, self.root, pod.directory, pod.manifest, volume, self.images)

    def restart(self, pod: RunningPod, name: str) -> Container:
        """End a container and start it anew. Volumes stay; hostPath types are not checked again, as in a kubelet."""
        pod.containers.pop(name).stop()
        (spec,) = (item for item in pod.manifest["spec"]["containers"] if item["name"] == name)
        return self._run(pod, spec)

    def stop(self, pod: RunningPod, grace: float = 0) -> None:
        """End a pod and remove its directory."""
        self.pods.pop(pod.uid, None)
        self._end(pod, grace)

    def _start(self, pod: RunningPod) -> None:
        spec = pod.manifest["spec"]
        pod.directory.mkdir(parents=True)
        for volume in spec.get("volumes", []):
            volumes.set_up(self.api, self.root, pod.directory, pod.manifest, volume, self.images)
        for container in spec.get("initContainers", []):
            started = self._run(pod, container)
            if container.get("restartPolicy") == "Always":
                continue
            try:
                status, _output = started.main.communicate(timeout=INIT_SECONDS)
            except subprocess.TimeoutExpired as error:
                said = f"container {container['name']} has not ended after {INIT_SECONDS} s: {started.errors()}"
                raise PodFailure("Init", said) from error
            if status != 0:
                raise PodFailure("Init:Error", f"container {container['name']} ended with {status}: {started.errors()}")
        for container in spec["containers"]:
            self._run(pod, container)

    def _run(self, pod: RunningPod, container: Json) -> Container:
        name = container["name"]
        image = self.images.get(container["image"])
        if image is None:
            raise PodFailure("ErrImagePull", f"container {name}: this node has no image {container['image']}")
        variables = environment.resolve(self.api, pod.manifest, container)
        binds = volumes.binds(self.root, pod.directory, pod.manifest, container, variables, self.images)
        library_directories: list[str] = []
        if pod.manifest["spec"].get("runtimeClassName") == nvidia.RUNTIME_CLASS and self.driver is not None:
            driver_binds, library_directories = nvidia.give(self.driver, variables)
            binds += driver_binds
        security = {**pod.manifest["spec"].get("securityContext", {}), **container.get("securityContext", {})}
        directory = pod.directory / "containers" / name / str(time.monotonic_ns())
        directory.mkdir(parents=True)
        try:
            started = Container(
                directory,
                ContainerSpec(
                    hostname=pod.manifest["metadata"]["name"],
                    command=_command(image, container, variables),
                    environment={**image.environment, **variables},
                    binds=[*image.binds(), *binds],
                    library_directories=library_directories,
                    credentials=_credentials(name, security),
                    read_only_root=security.get("readOnlyRootFilesystem", False),
                    directory=container.get("workingDir", "/"),
                ),
            )
        except RuntimeFailure as error:
            raise PodFailure("RunContainerError", f"container {name}: {error}") from error
        pod.containers[name] = started
        return started

    def _end(self, pod: RunningPod, grace: float = 0) -> None:
        for container in pod.containers.values():
            container.stop(grace)
        pod.containers.clear()
        if pod.directory.exists():
            shutil.rmtree(pod.directory)


def _command(image: Image, container: Json, variables: Mapping[str, str]) -> list[str]:
    command = container.get("command") or image.entrypoint
    return [environment.expand(word, variables) for word in [*command, *container.get("args", [])]]


def _credentials(name: str, security: Json) -> Credentials:
    only(
        f"securityContext of {name}", security,
        "runAsUser", "runAsGroup", "runAsNonRoot", "readOnlyRootFilesystem", "allowPrivilegeEscalation", "capabilities",
        "seccompProfile",
    )  # fmt: skip
    user = security.get("runAsUser", 0)
    if security.get("runAsNonRoot") and user == 0:
        raise PodFailure("CreateContainerConfigError", "container has runAsNonRoot and image will run as root")
    capabilities = security.get("capabilities", {})
    only(f"capabilities of {name}", capabilities, "drop", "add")
    named = CAPABILITIES | ADDABLE
    dropped, added = set(capabilities.get("drop", [])), set(capabilities.get("add", []))
    if dropped - {"ALL", *CAPABILITIES} or added - named.keys():
        raise unsupported(f"capabilities of {name}", capabilities)
    kept = set() if "ALL" in dropped else CAPABILITIES.keys() - dropped
    return Credentials(
        user=user,
        group=security.get("runAsGroup", 0),
        capabilities=tuple(number for key, number in named.items() if key in kept | added),
        no_new_privileges=not security.get("allowPrivilegeEscalation", True),
    )
