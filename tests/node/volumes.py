"""Volumes of a pod in the kubelet's directory, and where they are mounted in a container."""

from collections.abc import Mapping
from pathlib import Path

from tests.node import projection
from tests.node.environment import expand
from tests.node.objects import Api, Json, PodFailure, field_value, only, unsupported
from tests.node.runtime import Bind, Image

NOT_MADE = ("hostPath", "image")
"""Kinds of volumes that the kubelet makes nothing for: they are there, or the runtime mounts them."""

PLUGINS = {
    "projected": "kubernetes.io~projected",
    "configMap": "kubernetes.io~configmap",
    "downwardAPI": "kubernetes.io~downward-api",
    "emptyDir": "kubernetes.io~empty-dir",
}
"""Directory of each kind of volume under `pods/<uid>/volumes` (k8s.io/utils, strings.EscapeQualifiedName)."""


def kind(volume: Json) -> str:
    """Which kind of volume this is: the name of its source."""
    kinds = [key for key in volume if key != "name"]
    if len(kinds) != 1 or kinds[0] not in (*NOT_MADE, *PLUGINS):
        raise unsupported(f"volume {volume['name']}", ", ".join(kinds) or "a volume without a source")
    return kinds[0]


def directory(node_root: Path, pod_directory: Path, volume: Json, images: Mapping[str, Image]) -> Path:
    """Where the volume lies on the node. What `hostPath` names is below `node_root`.

    Raises PodFailure for an image that is not among `images`, or that is none to mount.
    """
    if kind(volume) == "image":
        only(f"volume {volume['name']}", volume["image"], "reference", "pullPolicy")
        found = images.get(volume["image"]["reference"])
        if found is None or found.content is None:
            raise PodFailure("ErrImagePull", f"volume {volume['name']}: no image {volume['image']['reference']}")
        return found.content
    if kind(volume) == "hostPath":
        return node_root / str(volume["hostPath"]["path"]).lstrip("/")
    return pod_directory / "volumes" / PLUGINS[kind(volume)] / str(volume["name"])


def set_up(
    api: Api, node_root: Path, pod_directory: Path, pod: Json, volume: Json, images: Mapping[str, Image]
) -> None:
    """Make the volume, or bring its files up to date.

    Raises PodFailure with reason FailedMount as the kubelet does, which then tries again.
    """
    path = directory(node_root, pod_directory, volume, images)
    source = volume[kind(volume)]
    match kind(volume):
        case "image":
            pass
        case "hostPath":
            only(f"volume {volume['name']}", source, "path", "type")
            _check_host_path(volume["name"], path, source["path"], source.get("type", ""))
        case "emptyDir":
            only(f"volume {volume['name']}", source, "sizeLimit")
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(0o777)
        case _:
            sources = source["sources"] if kind(volume) == "projected" else [{kind(volume): source}]
            files: dict[str, projection.File] = {}
            for item in sources:
                files |= _files(api, pod, volume["name"], item, source["defaultMode"])
            path.mkdir(parents=True, exist_ok=True)
            projection.write(path, files)


def _check_host_path(name: str, path: Path, host_path: str, type_: str) -> None:
    """Make and check by type; without a type nothing is checked (k8s.io/kubernetes: pkg/volume/hostpath)."""
    match type_:
        case "":
            right, wanted = True, ""
        case "File":
            right, wanted = path.is_file(), "file"
        case "Directory":
            right, wanted = path.is_dir(), "directory"
        case "DirectoryOrCreate":
            if not path.exists():
                path.mkdir(mode=0o755, parents=True)
            right, wanted = path.is_dir(), "directory"
        case _:
            raise unsupported(f"volume {name}", f"hostPath type {type_}")
    if not right:
        raise PodFailure(
            "FailedMount",
            f'MountVolume.SetUp failed for volume "{name}" : hostPath type check failed: {host_path} is not a {wanted}',
        )


def _files(api: Api, pod: Json, volume: str, source: Json, default_mode: int) -> dict[str, projection.File]:
    where = f"volume {volume}"
    if "downwardAPI" in source:
        only(where, source["downwardAPI"], "items", "defaultMode")
        result = {}
        for item in source["downwardAPI"]["items"]:
            only(where, item, "path", "fieldRef", "mode")
            content = field_value(pod, item["fieldRef"]["fieldPath"])
            result[item["path"]] = projection.File(content.encode(), item.get("mode", default_mode))
        return result
    if "configMap" in source:
        reference = source["configMap"]
        only(where, reference, "name", "items", "optional", "defaultMode")
        namespace = pod["metadata"]["namespace"]
        data = api.config_maps.get((namespace, reference["name"]))
        if data is None:
            if reference.get("optional"):
                return {}
            raise PodFailure(
                "FailedMount",
                f'MountVolume.SetUp failed for volume "{volume}" : configmap "{reference["name"]}" not found',
            )
        items = reference.get("items") or [{"key": key, "path": key} for key in data]
        result = {}
        for item in items:
            if item["key"] in data:
                result[item["path"]] = projection.File(data[item["key"]].encode(), item.get("mode", default_mode))
            elif not reference.get("optional"):
                raise PodFailure("FailedMount", f"configmap references non-existent config key: {item['key']}")
        return result
    raise unsupported(where, ", ".join(source))


def binds(
    node_root: Path,
    pod_directory: Path,
    pod: Json,
    container: Json,
    environment: dict[str, str],
    images: Mapping[str, Image],
) -> list[Bind]:
    """Mounts that the spec of a container names. The volumes are set up."""
    volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes", [])}
    result = []
    for item in container.get("volumeMounts", []):
        where = f"container {container['name']}, mount {item['mountPath']}"
        only(where, item, "name", "mountPath", "readOnly", "subPath", "subPathExpr")
        if item["name"] not in volumes:
            raise PodFailure("CreateContainerError", f"{where}: volume {item['name']} is not in the pod")
        path = directory(node_root, pod_directory, volumes[item["name"]], images)
        from_image = kind(volumes[item["name"]]) == "image"
        if from_image and (item.get("subPath") or item.get("subPathExpr")):
            # Runtimes differ in what they make of it (containerd 2.1 mounts the whole image).
            raise unsupported(where, "a sub-path of an image")
        if not path.exists():
            # A hostPath without type, or one whose file went after the first start: the runtime makes a directory.
            path.mkdir(parents=True)
        sub_path = item.get("subPath") or expand(item.get("subPathExpr", ""), environment)
        if sub_path:
            mode = path.stat().st_mode & 0o7777
            path = path / sub_path
            if not path.exists():
                path.mkdir(parents=True)
                path.chmod(mode)
        result.append(Bind(path.resolve(), item["mountPath"], item.get("readOnly", False) or from_image))
    return result
