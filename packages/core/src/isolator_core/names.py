"""Names that more than one part relies on: annotations, volumes, paths, ports. `docs/interfaces.md` lists them."""

ANNOTATION_PREFIX = "kai-resource-isolator.io/"
REQUEST_ANNOTATION = ANNOTATION_PREFIX + "request."
NOTICE_ANNOTATION = ANNOTATION_PREFIX + "notice"
PRELOAD_ANNOTATION = ANNOTATION_PREFIX + "preload"
INJECT_ANNOTATION = ANNOTATION_PREFIX + "inject"
WEBHOOK_LABEL = ANNOTATION_PREFIX + "webhook"

VOLUME_LIB = "kai-resource-isolator-lib"
VOLUME_PRELOAD = "kai-resource-isolator-preload"
VOLUME_LIMITS = "kai-resource-isolator-limits-"
VOLUME_REGION = "kai-resource-isolator-region-"

CONTAINER_DIR = "/usr/local/vgpu"
PRELOAD_PATH = "/etc/ld.so.preload"
HOST_DIR = "/var/lib/kai-resource-isolator"

LIBRARY_FILE = "libvgpu.so"
PRELOAD_FILE = "ld.so.preload"
LIMITS_DIR = "limits"
REQUEST_FILE = "request"
UID_FILE = "uid"
LIMIT_KEY = "CUDA_DEVICE_MEMORY_LIMIT"
CONTAINERS_DIR = "containers"
REGION_FILE = "usage.cache"
LOCK_FILE = "usage.lock"

WEBHOOK_PORT = 8443
WEBHOOK_METRICS_PORT = 9396
VRAMD_PORT = 50051
VRAMD_METRICS_PORT = 9397
MONITOR_PORT = 9394
LIBSYNC_METRICS_PORT = 9398


def container_index(position: int, *, init: bool) -> str:
    """The index that stands for a container in annotation keys and volume names: `0`, `1`, … or `i0`, `i1`, ….

    Positions, not container names: name parts of annotation keys and volume names end at 63 characters and a
    container's name may be as long (Kubernetes: `validation.DNS1123LabelMaxLength`).
    """
    return f"i{position}" if init else str(position)


def region_dir(pod_uid: str, container: str) -> str:
    """Name of the directory of one container's region: `<pod uid>_<container>` (HAMi's layout)."""
    return f"{pod_uid}_{container}"
