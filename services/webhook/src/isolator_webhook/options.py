"""What an operator chooses about decisions and patches."""

from typing import Literal

from msgspec import Struct

from isolator_core import names
from isolator_core.request_file import RegionVolume
from isolator_core.requests import HAMI_NAMES, ResourceNames

Treatment = Literal["default", "enforce", "exempt", "guard", "guard-enforce"]
"""How an administrator has a namespace treated: in `enforce` pods cannot opt out, in `exempt` nothing is capped.

`guard` is the question of the guard instead, a webhook entry of its own, and `guard-enforce` that in such a namespace,
where the guard too must know that an opt-out does not count.
"""


class LibraryImage(Struct, frozen=True):
    """The image that brings the library. `gate`: kubelets that need a feature gate to mount images have it on."""

    reference: str
    pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    gate: bool = False


class Options(Struct, frozen=True, cache_hash=True):
    """Choices that the pure part needs; `cli` makes them from settings.

    Without `library_image` the library and its preload file are two files of the node, in `host_dir`.
    """

    host_dir: str = names.HOST_DIR
    container_dir: str = names.CONTAINER_DIR
    library_image: LibraryImage | None = None
    region: RegionVolume = "emptyDir"
    region_size_mib: int = 16
    fraction_of: Literal["card", "basis"] = "card"
    kai_scheduler: str = "kai-scheduler"
    kai_reads_containers: bool = False
    resources: ResourceNames = HAMI_NAMES
    hami_resources: Literal["translate", "cap"] = "translate"
    hami_scheduler: str = "hami-scheduler"
    pod_opt_out: bool = True
    guard: Literal["off", "audit", "enforce"] = "off"
    guard_exempt_namespaces: tuple[str, ...] = ("kai-resource-reservation",)
    nvidia_runtime_classes: tuple[str, ...] = ("nvidia",)
    nvidia_is_default_runtime: bool = False
    on_internal_error: Literal["deny", "warn"] = "deny"
