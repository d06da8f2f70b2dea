"""The part of a pod that the monitor looks at, out of a Kubernetes PodList in JSON or YAML."""

from collections.abc import Iterator

import msgspec
import yaml

from isolator_core.errors import SettingsError


class _Kubernetes(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    pass


class Metadata(_Kubernetes, frozen=True):
    """Names of a pod."""

    name: str = ""
    namespace: str = "default"
    uid: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class Container(_Kubernetes, frozen=True):
    """A container, init container or sidecar."""

    name: str


class Spec(_Kubernetes, frozen=True):
    """What runs."""

    node_name: str = ""
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] | None = None


class Status(_Kubernetes, frozen=True):
    """How far it got."""

    phase: str = ""


class Pod(_Kubernetes, frozen=True):
    """A pod. What Kubernetes says beyond this is ignored."""

    metadata: Metadata
    spec: Spec
    status: Status = Status()

    @property
    def ended(self) -> bool:
        """Every container has ended for good."""
        return self.status.phase in ("Succeeded", "Failed")

    def containers(self) -> Iterator[Container]:
        """Init containers (sidecars are among them), then containers."""
        yield from self.spec.init_containers or ()
        yield from self.spec.containers


class _List(_Kubernetes, frozen=True):
    items: tuple[Pod, ...] | None = None


def parse_pods(text: bytes, source: str) -> tuple[Pod, ...]:
    """Pods of a PodList. Raises SettingsError that names `source` and the place in it that is wrong."""
    try:
        document = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        return msgspec.convert(document, _List).items or ()
    except yaml.YAMLError as error:
        raise SettingsError(f"{source} is neither YAML nor JSON: {' '.join(str(error).split())}") from error
    except msgspec.ValidationError as error:
        raise SettingsError(f"{source} is not a PodList: {error}") from error
