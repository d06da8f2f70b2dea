"""Whether the nodes can mount the library's image, by the versions that they report.

Kubernetes: feature gate ImageVolume, off by default until 1.35, unknown before 1.31. Runtimes: containerd mounts an
image whole since 2.1 (internal/cri/server/container_image_mount.go), CRI-O since 1.33 so that what is in it can be
executed (server/container_create_linux.go, mountImage: an overlay). An older runtime is given a mount without a source
and does not start the container (KEP-4639), so an unfit node keeps a pod waiting and never runs it without its cap.
`tests/containerd` sees that of containerd 1.6, and the cap under the oldest, a middle and the newest that fit.
"""

import re
from collections.abc import Sequence

from isolator_webhook.basis import Basis, NodeSoftware, Unknown
from isolator_webhook.options import LibraryImage

LEAST_KUBELET = (1, 35)
LEAST_KUBELET_WITH_GATE = (1, 31)
LEAST_RUNTIMES = {"containerd": (2, 1), "cri-o": (1, 33)}

_VERSION = re.compile(r"v?(\d{1,6})\.(\d{1,6})(?!\d)")


def _version(text: str) -> tuple[int, int] | None:
    found = _VERSION.match(text)
    return None if found is None else (int(found[1]), int(found[2]))


def _text(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def _least_kubelet(image: LibraryImage) -> tuple[int, int]:
    return LEAST_KUBELET_WITH_GATE if image.gate else LEAST_KUBELET


def mounts_images(software: NodeSoftware, image: LibraryImage) -> bool:
    """Whether nodes that run this can mount the image. A version that cannot be read counts as one that cannot."""
    kubelet = _version(software.kubelet_version)
    name, _, runtime_version = software.container_runtime_version.partition("://")
    runtime, least = _version(runtime_version), LEAST_RUNTIMES.get(name)
    if kubelet is None or runtime is None or least is None:
        return False
    return kubelet >= _least_kubelet(image) and runtime >= least


def unfit(basis: Basis, image: LibraryImage) -> list[NodeSoftware]:
    """What those GPU nodes run that cannot mount the image."""
    return [software for software in basis.software if not mounts_images(software, image)]


def count(software: Sequence[NodeSoftware]) -> int:
    """How many nodes that are."""
    return sum(one.nodes for one in software)


def _why(found: Sequence[NodeSoftware], image: LibraryImage) -> str:
    first = found[0]
    runtimes = " or ".join(f"{name} {_text(least)}" for name, least in LEAST_RUNTIMES.items())
    return (
        f"{first.example} runs kubelet {first.kubelet_version or 'unknown'} on "
        f"{first.container_runtime_version or 'an unknown runtime'}; accepted are kubelet "
        f"{_text(_least_kubelet(image))}, {runtimes}, and later"
    )


def refusal(basis: Basis, image: LibraryImage) -> str | None:
    """Why the pod is refused: none of the nodes that it can land on could start it. None where one could, or may."""
    found = unfit(basis, image)
    if not found or len(found) < len(basis.software):
        return None
    return (
        f"none of the {count(found)} GPU nodes that this pod can land on mounts images, which bring its library: "
        f"{_why(found, image)}"
    )


def notices(basis: Basis, image: LibraryImage) -> list[str]:
    """What the author is told about nodes that could not start the pod, or of which that is not known."""
    if not basis.software:
        reason = f": {basis.reason}" if isinstance(basis, Unknown) else ""
        return [f"it is not known whether the nodes mount images, without which the pod does not start{reason}"]
    found = unfit(basis, image)
    if not found:
        return []
    return [
        f"the pod does not start on {count(found)} of {count(basis.software)} GPU nodes, which mount no images: "
        f"{_why(found, image)}"
    ]
