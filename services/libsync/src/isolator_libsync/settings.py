"""Settings of the commands, and the wanted state of the node that they describe."""

import re
from pathlib import Path
from typing import Annotated

import structlog
from pydantic import AfterValidator, Field

from isolator_core.names import CONTAINER_DIR, HOST_DIR, LIBRARY_FILE, PRELOAD_FILE
from isolator_core.settings import Settings
from isolator_libsync import library, selinux
from isolator_libsync.files import Attributes, NodeFile
from isolator_libsync.findings import Finding
from isolator_libsync.keep import Wanted

log = structlog.get_logger()


def _absolute(value: Path) -> Path:
    if not value.is_absolute() or ".." in value.parts:
        raise ValueError("accepted is an absolute path without '..'")
    return value


def _preloadable(value: Path) -> Path:
    # ld.so(8): the names in the preload file are separated by white space or colons.
    if re.search(r"[\s:]", str(value)):
        raise ValueError("accepted is a path without white space and colons, which separate names in a preload file")
    return _absolute(value)


def _owner(value: str) -> str:
    if not re.fullmatch(r"\d{1,9}:\d{1,9}", value):
        raise ValueError("accepted is UID:GID in numbers, for example 0:0")
    return value


def _selinux_type(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.]*", value):
        raise ValueError("accepted is an SELinux type, for example container_file_t")
    return value


class DirectorySettings(Settings):
    """Where the files are kept."""

    host_dir: Annotated[Path, AfterValidator(_absolute)] = Field(
        Path(HOST_DIR), description="directory of the node that the files are kept in, at the path that pods mount"
    )


class NodeSettings(DirectorySettings):
    """What must stand there."""

    library: Path | None = Field(
        None,
        description=f"library to install; without it the image's build for this machine, {library.IMAGE_DIR}/MACHINE/"
        f"{LIBRARY_FILE}",
    )
    container_dir: Annotated[Path, AfterValidator(_preloadable)] = Field(
        Path(CONTAINER_DIR), description="directory in the container that the library is mounted in"
    )
    owner: Annotated[str, AfterValidator(_owner)] = Field(
        "0:0", description="UID:GID that the files must belong to; other than root only to try it without being root"
    )
    selinux_type: Annotated[str, AfterValidator(_selinux_type)] | None = Field(
        None,
        description="SELinux type that the files must have where the node runs SELinux, for example container_file_t;"
        " without it the label is left to the node's policy",
    )
    region_dir: bool = Field(
        False, description="also keep a directory containers/, mode 1777, for regions that are mounted from the node"
    )
    host_root: Annotated[Path, AfterValidator(_absolute)] | None = Field(
        None,
        description="read-only view of the node's root; with it the symbol versions that the library needs are looked"
        " for in the node's own libc",
    )


def wanted(settings: NodeSettings) -> Wanted:
    """The state of the node that the settings ask for. Raises SettingsError for a library that cannot be used."""
    found = library.load(settings.library or library.default_path())
    uid, gid = (int(part) for part in settings.owner.split(":"))
    selinux_type = settings.selinux_type
    if selinux_type is not None and not selinux.is_enabled():
        log.info("selinux_off", selinux_type=selinux_type, consequence="labels are not looked at")
        selinux_type = None
    attributes = Attributes(uid, gid, selinux_type)
    preload = f"{settings.container_dir / LIBRARY_FILE}\n".encode()
    return Wanted(
        directory=settings.host_dir,
        files=(
            NodeFile(LIBRARY_FILE, found.content, attributes, mapped=True),
            NodeFile(PRELOAD_FILE, preload, attributes, mapped=False),
        ),
        attributes=attributes,
        region_dir=settings.region_dir,
        unsuitable=_unsuitable(found, settings.host_root),
    )


def _unsuitable(found: library.Library, host_root: Path | None) -> Finding | None:
    if host_root is None:
        return None
    view = library.compare_with_node(found.shared_object, host_root)
    if not view.known:
        log.warning("node_loader_unknown", host_root=str(host_root), looked_for=library.LIBC)
        return None
    if not view.lacking:
        return None
    lacking = ", ".join(view.lacking)
    return Finding("unsuitable", found.path, f"needs what this node's libraries do not have: {lacking}")
