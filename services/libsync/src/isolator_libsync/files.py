"""The files that must stand in the node's directory, and how far those that stand there are right."""

import contextlib
import hashlib
import mmap
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from isolator_libsync import selinux
from isolator_libsync.findings import Finding

_CHUNK_BYTES = 64 * 1024


@dataclass(frozen=True)
class Attributes:
    """Owner and label that the files must have."""

    uid: int
    gid: int
    selinux_type: str | None
    """None: the label is left to the node's policy."""


@dataclass(frozen=True)
class NodeFile:
    """One file that must stand in the directory."""

    name: str
    content: bytes
    attributes: Attributes
    mapped: bool
    """True for a library: programs map it executable."""

    @property
    def mode(self) -> int:
        """The library is also a program, which says what holds in its container."""
        return 0o755 if self.mapped else 0o644

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()


@dataclass(frozen=True)
class Directory:
    """The node's directory, open: what is done in it is done by this descriptor, whatever its path names meanwhile."""

    path: Path
    fd: int


@contextlib.contextmanager
def open_directory(path: Path) -> Iterator[Directory]:
    """Open the directory for the time of a `with`. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield Directory(path, fd)
    finally:
        os.close(fd)


def examine(directory: Directory, file: NodeFile, name: str | None = None) -> list[Finding]:
    """Compare what stands in the directory (under `name`, if it is not the file's own) with what must."""
    name = name or file.name
    path = directory.path / name
    try:
        status = os.stat(name, dir_fd=directory.fd, follow_symlinks=False)
    except FileNotFoundError:
        return [Finding("missing", path, "the file is missing")]
    except OSError as error:
        return [Finding("content", path, f"cannot be looked at: {error.strerror}")]
    if not stat.S_ISREG(status.st_mode):
        return [Finding("not_a_file", path, f"is a {_kind(status.st_mode)} in the file's place")]
    findings = []
    if stat.S_IMODE(status.st_mode) != file.mode:
        mode = stat.S_IMODE(status.st_mode)
        findings.append(Finding("mode", path, f"has mode {mode:04o}, not {file.mode:04o}"))
    owner, wanted_owner = (status.st_uid, status.st_gid), (file.attributes.uid, file.attributes.gid)
    if owner != wanted_owner:
        findings.append(Finding("owner", path, "belongs to {}:{}, not {}:{}".format(*owner, *wanted_owner)))
    try:
        # Not blocking: a FIFO that took the file's place since `stat` must not hold us up.
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory.fd)
    except OSError as error:
        return [*findings, Finding("content", path, f"cannot be read: {error.strerror}")]
    try:
        return findings + _examine_open(fd, path, file)
    finally:
        os.close(fd)


def _examine_open(fd: int, path: Path, file: NodeFile) -> list[Finding]:
    findings = []
    wanted_type = file.attributes.selinux_type
    if wanted_type is not None and not selinux.has_type(fd, wanted_type):
        findings.append(Finding("selinux_type", path, f"does not have the SELinux type {wanted_type} at level s0"))
    try:
        found = None if _has_content(fd, file.content) else _sha256(fd)
    except OSError as error:
        return [*findings, Finding("content", path, f"cannot be read: {error.strerror}")]
    if found is not None:
        size = os.fstat(fd).st_size
        return [
            *findings,
            Finding(
                "content", path, f"is {size} bytes with digest {found}, not {len(file.content)} with {file.sha256}"
            ),
        ]
    if file.mapped:
        try:
            mmap.mmap(fd, len(file.content), flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC).close()
        except OSError as error:
            findings.append(Finding("not_executable", path, f"cannot be mapped executable: {error.strerror}"))
    return findings


def _has_content(fd: int, content: bytes) -> bool:
    """Whether the rest of the file is this. Compared and not digested: that is most of what an idle node costs."""
    at = 0
    while chunk := os.read(fd, _CHUNK_BYTES):
        if chunk != content[at : at + len(chunk)]:
            return False
        at += len(chunk)
    return at == len(content)


def _sha256(fd: int) -> str:
    """Of the whole file."""
    with open(fd, "rb", closefd=False) as stream:
        stream.seek(0)
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _kind(mode: int) -> str:
    kinds = {
        stat.S_IFDIR: "directory",
        stat.S_IFLNK: "symbolic link",
        stat.S_IFIFO: "FIFO",
        stat.S_IFSOCK: "socket",
    }
    return kinds.get(stat.S_IFMT(mode), "device")
