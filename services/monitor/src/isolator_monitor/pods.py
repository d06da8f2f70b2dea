"""The part of a pod that the monitor looks at, out of Kubernetes' JSON or YAML."""

from collections.abc import Iterator, Mapping

import msgspec
import yaml

from isolator_core import names
from isolator_core.errors import SettingsError


class PodsUnknown(Exception):
    """It is not known yet which pods there are."""


class _Kubernetes(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    pass


class Metadata(_Kubernetes, frozen=True):
    """Names of a pod."""

    name: str = ""
    namespace: str = "default"
    uid: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    resource_version: str = ""


class FieldRef(_Kubernetes, frozen=True):
    """A field of the pod."""

    field_path: str = ""


class ValueFrom(_Kubernetes, frozen=True):
    """Where a variable's value comes from."""

    field_ref: FieldRef | None = None


class Variable(_Kubernetes, frozen=True):
    """An environment variable."""

    name: str
    value: str | None = None
    value_from: ValueFrom | None = None


class VolumeMount(_Kubernetes, frozen=True):
    """Where a container sees a volume."""

    name: str
    mount_path: str
    sub_path: str = ""
    sub_path_expr: str = ""


class Resources(_Kubernetes, frozen=True):
    """What a container is promised."""

    limits: dict[str, str | int | float] | None = None


class Container(_Kubernetes, frozen=True):
    """A container, init container or sidecar."""

    name: str
    env: tuple[Variable, ...] | None = None
    volume_mounts: tuple[VolumeMount, ...] | None = None
    resources: Resources = Resources()
    restart_policy: str = ""
    """`Always` makes an init container a sidecar."""

    @property
    def limits(self) -> Mapping[str, object]:
        """Resource limits."""
        return self.resources.limits or {}


class HostPath(_Kubernetes, frozen=True):
    """A directory or file of the node."""

    path: str = ""


class Present(_Kubernetes, frozen=True):
    """Something of which only matters that it is there."""


class Volume(_Kubernetes, frozen=True):
    """A volume; of other kinds than these only the name is known."""

    name: str
    empty_dir: Present | None = None
    projected: Present | None = None
    host_path: HostPath | None = None


class Spec(_Kubernetes, frozen=True):
    """What runs."""

    node_name: str = ""
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] | None = None
    volumes: tuple[Volume, ...] | None = None


class ContainerStatus(_Kubernetes, frozen=True):
    """Which instance of a container runs."""

    name: str = ""
    container_id: str | None = msgspec.field(default=None, name="containerID")


class Status(_Kubernetes, frozen=True):
    """How far it got."""

    phase: str = ""
    container_statuses: tuple[ContainerStatus, ...] | None = None
    init_container_statuses: tuple[ContainerStatus, ...] | None = None


class Pod(_Kubernetes, frozen=True):
    """A pod. What Kubernetes says beyond this is ignored."""

    metadata: Metadata
    spec: Spec
    status: Status = Status()

    @property
    def ended(self) -> bool:
        """Every container has ended for good."""
        return self.status.phase in ("Succeeded", "Failed")

    @property
    def annotations(self) -> Mapping[str, str]:
        """Annotations, empty where there are none."""
        return self.metadata.annotations or {}

    @property
    def labels(self) -> Mapping[str, str]:
        """Labels, empty where there are none."""
        return self.metadata.labels or {}

    def containers(self) -> Iterator[tuple[str, Container]]:
        """Init containers (sidecars are among them), then containers, each with its index in names of volumes."""
        for init, containers in ((True, self.spec.init_containers), (False, self.spec.containers)):
            for position, container in enumerate(containers or ()):
                yield names.container_index(position, init=init), container

    def container_ids(self) -> dict[str, str]:
        """Name by ID (64 hexadecimal digits) of the container instances that the kubelet reported last."""
        statuses = (*(self.status.init_container_statuses or ()), *(self.status.container_statuses or ()))
        return {status.container_id.rpartition("/")[2]: status.name for status in statuses if status.container_id}


class PodList(_Kubernetes, frozen=True):
    """Pods, and from which moment they are."""

    items: tuple[Pod, ...] | None = None
    metadata: Metadata = Metadata()


def parse_pods(content: bytes, source: str) -> tuple[Pod, ...]:
    """Pods of a PodList. Raises SettingsError that names `source` and the place in it that is wrong."""
    try:
        document = _document(content)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SettingsError(f"{source} is neither YAML nor JSON: {' '.join(str(error).split())}") from error
    kind = document.get("kind") if isinstance(document, dict) else None
    if kind not in ("PodList", "List"):
        raise SettingsError(f"{source} is not a PodList: kind is {kind!r}; accepted are PodList and List")
    try:
        return msgspec.json.decode(msgspec.json.encode(document), type=PodList).items or ()
    except msgspec.ValidationError as error:
        raise SettingsError(f"{source} is not a PodList: {error}") from error


def _document(content: bytes) -> object:
    """What YAML or JSON says. JSON first, which writes some characters as YAML does not: `\\ud83d\\ude80` is one."""
    try:
        return msgspec.json.decode(content)
    except msgspec.DecodeError:
        return yaml.load(content, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
