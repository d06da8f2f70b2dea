"""What the webhook reads of an AdmissionReview and a Pod, and the parts of a Pod that it writes.

Fields that are not named here are skipped when decoding; nothing is lost by that, since the patch only touches what it
names. Structs that are written carry the API server's defaults, so that what was written and what comes back after
defaulting are equal (Kubernetes: pkg/apis/core/v1/defaults.go).
"""

import functools
import posixpath
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Raw, Struct

LONGEST_KEPT = 255
"""Texts are as long as a pod's author likes: longer ones are not kept for pods that come."""


@functools.lru_cache(maxsize=4096)
def _resolved(path: str) -> str:
    return posixpath.normpath("/" + path).replace("//", "/")


def absolute(path: str) -> str:
    """A mount path as the kubelet and the runtime resolve it."""
    return _resolved(path) if len(path) <= LONGEST_KEPT else _resolved.__wrapped__(path)


class _Read(Struct, rename="camel"):
    pass


class _Written(Struct, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    pass


class GroupVersionKind(_Read):
    group: str = ""
    version: str = ""
    kind: str = ""


class GroupVersionResource(_Read):
    group: str = ""
    version: str = ""
    resource: str = ""


class AdmissionRequest(_Read):
    uid: str
    kind: GroupVersionKind
    resource: GroupVersionResource
    operation: str
    sub_resource: str = ""
    name: str = ""
    namespace: str = ""
    dry_run: bool | None = None
    object: Raw = Raw(b"null")
    old_object: Raw = Raw(b"null")


class AdmissionReview(_Read):
    api_version: str
    kind: str
    request: AdmissionRequest


class FieldRef(_Written):
    field_path: str
    api_version: str = "v1"


class DownwardItem(_Written):
    path: str
    field_ref: FieldRef


class DownwardSource(_Written):
    items: list[DownwardItem]


class KeyItem(_Written):
    key: str
    path: str


class ConfigMapSource(_Written):
    name: str
    items: list[KeyItem]
    optional: bool = False


class ProjectedSource(_Written):
    downward_api: DownwardSource | None = msgspec.field(name="downwardAPI", default=None)
    config_map: ConfigMapSource | None = None


class ProjectedVolume(_Written):
    sources: list[ProjectedSource]
    default_mode: int = 0o644


class HostPathVolume(_Written):
    path: str
    type: str = ""


class EmptyDirVolume(_Written):
    size_limit: str | None = None


class ImageVolume(_Written):
    reference: str
    pull_policy: str


class WrittenVolume(_Written):
    """A volume of ours."""

    name: str
    host_path: HostPathVolume | None = None
    image: ImageVolume | None = None
    projected: ProjectedVolume | None = None
    empty_dir: EmptyDirVolume | None = None


class EnvSource(_Written):
    field_ref: FieldRef


class WrittenVariable(_Written):
    """An environment variable of ours."""

    name: str
    value: str | None = None
    value_from: EnvSource | None = None


class VolumeMount(_Written, forbid_unknown_fields=False):
    """A mount, read and written."""

    name: str
    mount_path: str
    read_only: bool = False
    sub_path: str = ""
    sub_path_expr: str = ""
    mount_propagation: str | None = None
    bind_mount_options: tuple[str, ...] | None = None
    """From Kubernetes 1.37 (feature gate VolumeBindMountOptions). With `noexec` the loader passes a library by."""


class Volume(_Read):
    """A volume as it is in the pod. Its source is kept undecoded, empty where it is not there."""

    name: str
    host_path: Raw = Raw()
    image: Raw = Raw()
    projected: Raw = Raw()
    empty_dir: Raw = Raw()


class Variable(_Read):
    """An environment variable as it is in the pod."""

    name: str
    value: str | None = None
    value_from: Raw = Raw()


class Resources(_Read):
    limits: dict[str, Any] | None = None
    requests: dict[str, Any] | None = None
    claims: list[Raw] | None = None


class Capabilities(_Read):
    add: list[str] | None = None


class SecurityContext(_Read):
    privileged: bool | None = None
    capabilities: Capabilities | None = None


class Container(_Read):
    name: str
    resources: Resources | None = None
    env: list[Variable] | None = None
    volume_mounts: list[VolumeMount] | None = None
    security_context: SecurityContext | None = None

    def may_unmount(self) -> str | None:
        """The field that lets the container undo mounts, None where none does."""
        context = self.security_context
        if context is None:
            return None
        if context.privileged:
            return "securityContext.privileged"
        added = (context.capabilities and context.capabilities.add) or []
        for capability in added:
            if capability.upper().removeprefix("CAP_") in ("ALL", "SYS_ADMIN"):
                return f"capability {capability}"
        return None

    @property
    def limits(self) -> Mapping[str, object]:
        """Resource limits by name, empty where there are none."""
        return {} if self.resources is None else self.resources.limits or {}


class EphemeralContainer(Container):
    target_container_name: str = ""


class SelectorRequirement(_Read):
    key: str = ""
    operator: str = ""
    values: list[str] | None = None


class SelectorTerm(_Read):
    match_expressions: list[SelectorRequirement] | None = None
    match_fields: list[SelectorRequirement] | None = None


class NodeSelector(_Read):
    node_selector_terms: list[SelectorTerm] | None = None


class NodeAffinity(_Read):
    required: NodeSelector | None = msgspec.field(name="requiredDuringSchedulingIgnoredDuringExecution", default=None)


class Affinity(_Read):
    node_affinity: NodeAffinity | None = None


class Os(_Read):
    name: str = ""


class PodSpec(_Read):
    containers: list[Container]
    init_containers: list[Container] | None = None
    ephemeral_containers: list[EphemeralContainer] | None = None
    volumes: list[Volume] | None = None
    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None
    node_name: str = ""
    scheduler_name: str = ""
    os: Os | None = None
    runtime_class_name: str | None = None

    def container(self, position: int, *, init: bool) -> Container:
        """A container by its position among init containers or regular ones, as requests have it."""
        return ((self.init_containers or []) if init else self.containers)[position]

    @property
    def required_node_affinity(self) -> NodeSelector | None:
        """Required node affinity, None where there is none."""
        if self.affinity is None or self.affinity.node_affinity is None:
            return None
        return self.affinity.node_affinity.required


class PodMeta(_Read):
    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None


class Pod(_Read):
    metadata: PodMeta
    spec: PodSpec

    @property
    def annotations(self) -> Mapping[str, str]:
        """Annotations, empty where there are none."""
        return self.metadata.annotations or {}
