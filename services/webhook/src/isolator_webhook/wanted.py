"""What a container that gets its share is to have: its request file, volumes, mounts and variables."""

import fractions
import functools
import posixpath
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from isolator_core import names, request_file
from isolator_core.requests import WHOLE, Fraction, Memory, Request
from isolator_webhook.basis import Basis, Known
from isolator_webhook.options import LibraryImage, Options
from isolator_webhook.pod import (
    LONGEST_KEPT,
    ConfigMapSource,
    DownwardItem,
    DownwardSource,
    EmptyDirVolume,
    EnvSource,
    FieldRef,
    HostPathVolume,
    ImageVolume,
    KeyItem,
    Pod,
    ProjectedSource,
    ProjectedVolume,
    VolumeMount,
    WrittenVariable,
    WrittenVolume,
)

KAI_CONFIG_MAP_ANNOTATION = "runai/shared-gpu-configmap"
"""Prefix of the ConfigMaps in which KAI's binder leaves what a container was given (KAI: gpusharingconfigmap)."""

UID_VARIABLE = "POD_UID"


@functools.lru_cache(maxsize=1024)
def product_mib(fraction: Fraction, basis_mib: int) -> int:
    """MiB that a fraction is of a basis, truncated, and at least 1: `0m` means no limit to HAMi-core."""
    return max(1, int(fractions.Fraction(fraction.decimal) * basis_mib))


def _at_most_mib(request: Request, basis: Basis, options: Options) -> int | None:
    """The basis bounds a part of a card. A whole one is given whole, whichever it is."""
    if request.memory == WHOLE:
        return None
    if options.fraction_of == "basis" and isinstance(basis, Known) and isinstance(request.memory, Fraction):
        return product_mib(request.memory, basis.mib)
    return None


def _fraction_text(fraction: Fraction) -> str:
    """Of a fraction that is too small for the request file, the least that is not."""
    return fraction.decimal if fraction.value >= float(request_file.LEAST_FRACTION) else request_file.LEAST_FRACTION


def _request_text(request: Request, basis: Basis, options: Options, *, exempt: bool) -> str:
    """Text of the `request` file of one container."""
    if exempt:
        return request_file.build(
            request_file.RequestFile(
                container=request.container, exempt=True, devices=request.devices, region=options.region
            )
        )
    return request_file.build(
        request_file.RequestFile(
            container=request.container,
            memory_mib=min(request.memory.mib, request_file.MOST_MIB) if isinstance(request.memory, Memory) else None,
            fraction=_fraction_text(request.memory) if isinstance(request.memory, Fraction) else None,
            at_most_mib=_at_most_mib(request, basis, options),
            devices=request.devices,
            cores=request.cores,
            priority=request.priority,
            region=options.region,
        )
    )


def _size(mib: int) -> str:
    """A size as the API server writes it back: with the largest binary suffix that leaves an integer."""
    suffixes = ["Mi", "Gi", "Ti"]
    while mib % 1024 == 0 and len(suffixes) > 1:
        mib //= 1024
        suffixes.pop(0)
    return f"{mib}{suffixes[0]}"


@functools.lru_cache(maxsize=1024)
def _limits_volume(index: str, config_map_prefix: str) -> WrittenVolume:
    annotation = f"metadata.annotations['{names.REQUEST_ANNOTATION}{index}']"
    sources = [
        ProjectedSource(
            downward_api=DownwardSource(
                [
                    DownwardItem(names.REQUEST_FILE, FieldRef(annotation)),
                    DownwardItem(names.UID_FILE, FieldRef("metadata.uid")),
                ]
            )
        )
    ]
    if config_map_prefix:
        config_map = ConfigMapSource(
            name=f"{config_map_prefix}-{index}", items=[KeyItem(names.LIMIT_KEY, names.LIMIT_KEY)], optional=True
        )
        sources.append(ProjectedSource(config_map=config_map))
    return WrittenVolume(names.VOLUME_LIMITS + index, projected=ProjectedVolume(sources))


@functools.lru_cache(maxsize=1024)
def _region_volume(index: str, options: Options) -> WrittenVolume:
    name = names.VOLUME_REGION + index
    if options.region == "hostPath":
        # Directory, and not DirectoryOrCreate: one that libsync did not make is closed to all but root.
        directory = posixpath.join(options.host_dir, names.CONTAINERS_DIR)
        return WrittenVolume(name, host_path=HostPathVolume(directory, type="Directory"))
    return WrittenVolume(name, empty_dir=EmptyDirVolume(size_limit=_size(options.region_size_mib)))


@functools.lru_cache(maxsize=16)
def _file_volumes(host_dir: str) -> tuple[WrittenVolume, ...]:
    return tuple(
        WrittenVolume(volume, host_path=HostPathVolume(posixpath.join(host_dir, file), type="File"))
        for volume, file in ((names.VOLUME_LIB, names.LIBRARY_FILE), (names.VOLUME_PRELOAD, names.PRELOAD_FILE))
    )


@functools.lru_cache(maxsize=16)
def _image_volumes(image: LibraryImage) -> tuple[WrittenVolume, ...]:
    """The image, and the preload file from an annotation: of an image no single file can be mounted."""
    annotation = FieldRef(f"metadata.annotations['{names.PRELOAD_ANNOTATION}']")
    preload = ProjectedSource(downward_api=DownwardSource([DownwardItem(names.PRELOAD_FILE, annotation)]))
    return (
        WrittenVolume(names.VOLUME_LIB, image=ImageVolume(image.reference, image.pull_policy)),
        WrittenVolume(names.VOLUME_PRELOAD, projected=ProjectedVolume([preload])),
    )


def annotations(options: Options) -> dict[str, str]:
    """The pod's annotations that its volumes read, but for those of its requests."""
    if options.library_image is None:
        return {}
    return {names.PRELOAD_ANNOTATION: f"{posixpath.join(options.container_dir, names.LIBRARY_FILE)}\n"}


def volumes(pod: Pod, requests: Iterable[Request], options: Options, *, exempt: bool) -> list[WrittenVolume]:
    """The pod's volumes of ours: library and preload file, and for each container its limits and its region."""
    prefix = "" if exempt else pod.annotations.get(KAI_CONFIG_MAP_ANNOTATION, "")
    image = options.library_image
    found = list(_file_volumes(options.host_dir) if image is None else _image_volumes(image))
    limits_volume = _limits_volume if len(prefix) <= LONGEST_KEPT else _limits_volume.__wrapped__
    for request in requests:
        found.append(limits_volume(request.index, prefix))
        found.append(_region_volume(request.index, options))
    return found


def mounts(request: Request, options: Options) -> dict[str, VolumeMount]:
    """The mounts of the request's container, by path.

    Of a directory of the node it sees its own part alone, which the kubelet makes with that directory's mode; by a
    sub-path, since a mount path cannot hold the pod's UID (Kubernetes: pkg/kubelet/kubelet_pods.go, makeMounts).
    """

    def inside(name: str) -> str:
        return posixpath.join(options.container_dir, name)

    own = names.region_dir(f"$({UID_VARIABLE})", request.container) if options.region == "hostPath" else ""
    if options.library_image is not None:
        # Whole: it holds empty directories where limits and region go.
        library = VolumeMount(names.VOLUME_LIB, options.container_dir, read_only=True)
        preload = VolumeMount(names.VOLUME_PRELOAD, names.PRELOAD_PATH, read_only=True, sub_path=names.PRELOAD_FILE)
    else:
        library = VolumeMount(names.VOLUME_LIB, inside(names.LIBRARY_FILE), read_only=True)
        preload = VolumeMount(names.VOLUME_PRELOAD, names.PRELOAD_PATH, read_only=True)
    limits = VolumeMount(names.VOLUME_LIMITS + request.index, inside(names.LIMITS_DIR), read_only=True)
    region = VolumeMount(names.VOLUME_REGION + request.index, inside(names.CONTAINERS_DIR), sub_path_expr=own)
    return {mount.mount_path: mount for mount in (library, preload, limits, region)}


def fixed(options: Options) -> frozenset[str]:
    """Variables that are ours whatever the author set: one by which the kubelet finds the region's directory."""
    return frozenset((UID_VARIABLE,) if options.region == "hostPath" else ())


def _limit(request: Request, basis: Basis, *, exempt: bool) -> str | None:
    """Value of `CUDA_DEVICE_MEMORY_LIMIT`, None where it cannot be known or there is none."""
    if exempt:
        return None
    if isinstance(request.memory, Memory):
        return f"{min(request.memory.mib, request_file.MOST_MIB)}m"
    return f"{product_mib(request.memory, basis.mib)}m" if isinstance(basis, Known) else None


def variables(request: Request, basis: Basis, options: Options, *, exempt: bool) -> list[WrittenVariable]:
    """The variables of a container, for tools and libraries that look there: libvgpu itself reads the files."""
    found = [
        WrittenVariable(UID_VARIABLE, value_from=EnvSource(FieldRef("metadata.uid"))),
        WrittenVariable("CONTAINER_NAME", value=request.container),
        WrittenVariable("CONTAINER_VGPU_MOUNT", value=options.container_dir),
    ]
    limit = _limit(request, basis, exempt=exempt)
    return found if limit is None else [*found, WrittenVariable(names.LIMIT_KEY, value=limit)]


class ContainerWants(Struct, frozen=True):
    """What one container is to have: the text of its request file, its mounts and its variables."""

    request_text: str
    mounts: Mapping[str, VolumeMount]
    variables: Sequence[WrittenVariable]


@functools.lru_cache(maxsize=1024)
def of_container(request: Request, basis: Basis, options: Options, *, exempt: bool) -> ContainerWants:
    """What the request's container is to have; kept, since pods come by the hundred alike.

    Raises RequestFileInvalid for a request that no file can hold.
    """
    return ContainerWants(
        _request_text(request, basis, options, exempt=exempt),
        mounts(request, options),
        variables(request, basis, options, exempt=exempt),
    )
