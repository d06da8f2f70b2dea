"""The library that is to be installed: read once, and checked to suit this node."""

import hashlib
import platform
from dataclasses import dataclass
from pathlib import Path

from isolator_core.errors import SettingsError
from isolator_core.names import LIBRARY_FILE
from isolator_libsync import elf

IMAGE_DIR = Path("/opt/kai-resource-isolator")
LIBC = "libc.so.6"


@dataclass(frozen=True)
class Library:
    """The library's bytes and what its ELF file says."""

    path: Path
    content: bytes
    sha256: str
    shared_object: elf.SharedObject


def default_path() -> Path:
    """Where the image keeps the build for this machine."""
    return IMAGE_DIR / platform.machine() / LIBRARY_FILE


def load(path: Path) -> Library:
    """Read the library. Raises SettingsError if it cannot be read, is not a whole one or is for another machine."""
    where = f"--library (ISOLATOR_LIBSYNC_LIBRARY) is {str(path)!r}"
    accepted = f"a libvgpu.so for {platform.machine()}"
    try:
        content = path.read_bytes()
        shared_object = elf.parse(content)
    except OSError as error:
        raise SettingsError(f"{where}, which cannot be read: {error.strerror}; accepted is {accepted}") from error
    except elf.ElfError as error:
        raise SettingsError(f"{where}: {error}; accepted is {accepted}") from error
    if shared_object.machine != platform.machine():
        raise SettingsError(f"{where}: it is for {shared_object.machine}; accepted is {accepted}")
    return Library(path, content, hashlib.sha256(content).hexdigest(), shared_object)


@dataclass(frozen=True)
class LoaderView:
    """What is known of the node's loader and how the library fits it."""

    known: bool
    """False where the view shows no libc: nothing can be said then."""
    lacking: tuple[str, ...]
    """What the library needs and the node's libraries do not define, as `libc.so.6: GLIBC_2.38`."""


def compare_with_node(shared_object: elf.SharedObject, host_root: Path) -> LoaderView:
    """Look for the symbol versions that the library needs in the node's own libraries below `host_root`."""
    if _find(host_root, LIBC) is None:
        return LoaderView(known=False, lacking=())
    lacking = []
    for name in shared_object.needed:
        wanted = shared_object.version_needs.get(name, ())
        found = _find(host_root, name)
        if found is None:
            lacking.append(name)
        else:
            lacking += [f"{name}: {version}" for version in wanted if version not in found.version_definitions]
    return LoaderView(known=True, lacking=tuple(lacking))


def _find(host_root: Path, name: str) -> elf.SharedObject | None:
    """The node's library of this name, from the directories that its loader searches by default (ld.so(8)).

    A file that a link leads to outside of `host_root` belongs to the container and says nothing about the node.
    """
    root = host_root.resolve()
    multiarch = f"{platform.machine()}-linux-gnu"
    for folder in ("lib64", f"lib/{multiarch}", "usr/lib64", f"usr/lib/{multiarch}", "lib", "usr/lib"):
        path = (root / folder / name).resolve()
        if not path.is_relative_to(root) or not path.is_file():
            continue
        try:
            found = elf.parse(path.read_bytes())
        except (OSError, elf.ElfError):
            continue
        if found.machine == platform.machine():
            return found
    return None
