"""Settings of the commands."""

from pathlib import Path

from pydantic import Field

from isolator_core import names
from isolator_core.settings import PathList, Settings

RESERVATION_NAMESPACE = "kai-resource-reservation"


class RegionSettings(Settings):
    """Where containers' regions are on this node."""

    kubelet_root: Path | None = Field(
        None,
        description="the kubelet's directory, for regions in emptyDir volumes and for limits, such as /var/lib/kubelet",
    )
    region_root: PathList = Field(
        (),
        description="directory of regions in hostPath volumes, ROOT/<pod uid>_<container>/usage.cache; may be repeated",
    )


class NodeSettings(RegionSettings):
    """What of containers is on this node."""

    host_dir: Path | None = Field(
        None, description="the directory on the host that holds libvgpu.so, to notice what stands in its place"
    )


class PodSettings(Settings):
    """Which pods there are."""

    pods_file: Path | None = Field(
        None,
        description="a Kubernetes PodList in YAML or JSON instead of the API server, read again when it changes; its "
        "containers' regions are also looked for by name",
    )
    node_name: str | None = Field(
        None, validation_alias="NODE_NAME", description="name of this node, whose pods the API server is asked for"
    )
    kubeconfig: Path | None = Field(
        None, description="kubeconfig of the cluster; without it, the cluster that this runs in"
    )
    kube_context: str | None = Field(None, description="context of the kubeconfig; default its current one")
    container_dir: str = Field(names.CONTAINER_DIR, description="directory of libvgpu.so in containers")
    reservation_namespace: str = Field(RESERVATION_NAMESPACE, description="namespace of KAI's reservation pods")
    legacy_metrics: bool = Field(False, description="add upstream's metric names from before HAMi 2.9")


class OnceSettings(PodSettings, NodeSettings):
    """Settings of `once`."""


class ServeSettings(OnceSettings):
    """Settings of `serve`."""

    listen_address: str = Field("0.0.0.0", description="address to listen on")
    listen_port: int = Field(names.MONITOR_PORT, ge=0, le=65535, description="HTTP port; 0 takes a free one")
    reader_socket: Path | None = Field(
        None,
        description="Unix socket to listen on for `read`, which then reads the node in place of this process",
    )
    steerer_socket: Path | None = Field(
        None, description="Unix socket to listen on for `steer`, which tells containers their PIDs and who comes first"
    )
    update_interval: float = Field(5.0, gt=0, le=3600, description="seconds from one reading to the next")


class ReadSettings(NodeSettings):
    """Settings of `read`."""

    reader_socket: Path = Field(description="Unix socket on which `serve` listens")
    nvml_patience: float = Field(5.0, gt=0, le=600, description="seconds after which NVML counts as hanging")


class SteerSettings(RegionSettings):
    """Settings of `steer`."""

    steerer_socket: Path = Field(description="Unix socket on which `serve` listens")


class TopSettings(Settings):
    """Settings of `top`."""

    url: str = Field(f"http://127.0.0.1:{names.MONITOR_PORT}", description="address of a monitor that serves")
    interval: float = Field(2.0, gt=0, le=3600, description="seconds from one picture to the next")
    once: bool = Field(False, description="show one picture and end, as when the output is no terminal")


class CleanSettings(Settings):
    """Settings of `clean`."""

    region_root: PathList = Field(min_length=1, description="directory of regions in hostPath volumes; may be repeated")
    kubelet_root: Path = Field(description="the kubelet's directory, which tells which pods are gone")
    least_age: float = Field(300.0, ge=0, description="seconds for which nothing must have changed in a region")
    budget: int = Field(1000, ge=1, description="directory entries that one pass looks at or removes, a root")
    interval: float = Field(60.0, gt=0, le=86400, description="seconds from one pass to the next")
    once: bool = Field(False, description="make one pass and end")
