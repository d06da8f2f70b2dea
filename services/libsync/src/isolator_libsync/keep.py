"""Compare the node with what is wanted, and make it right: the directory, then the library, then the preload file."""

import contextlib
import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from isolator_core.names import CONTAINERS_DIR
from isolator_libsync import selinux
from isolator_libsync.files import Attributes, Directory, NodeFile, examine, open_directory
from isolator_libsync.findings import Finding, NotRight, cannot_read, cannot_write, noexec
from isolator_libsync.replace import adjust, clear_leftovers, replace

log = structlog.get_logger()

_IN_PLACE = {"mode", "owner", "selinux_type"}
"""Findings that can be put right on the file that stands there."""

_REGION_DIR_MODE = 0o1777
"""The kubelet gives a sub-path that it makes the mode of the volume's directory (Kubernetes: pkg/volume/util/subpath,
SafeMakeDir), so a container's own directory is open to every user of it; and nobody removes another's.
"""


@dataclass(frozen=True)
class Wanted:
    """What the node must look like."""

    directory: Path
    files: tuple[NodeFile, ...]
    """In the order of installation: a preload file never names a library that is not there."""
    attributes: Attributes
    region_dir: bool
    """True if the directory of regions, `containers/`, is kept here too."""
    unsuitable: Finding | None = None
    """Why the library does not suit this node: then nothing is installed."""


@dataclass(frozen=True)
class Outcome:
    """What one pass did."""

    remaining: list[Finding]
    """What is still wrong; empty: the node is right."""
    repaired: list[Finding] = field(default_factory=list)
    """What was wrong and has been put right."""


def make_directory(path: Path) -> None:
    """Make the directory and its parents, mode 0755, where they are missing. Raises NotRight."""
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o755)
    except OSError as error:
        raise NotRight(cannot_write(path, "make the directory", error)) from error


@contextlib.contextmanager
def hold(directory: Directory) -> Iterator[None]:
    """Be the only one that writes in the directory. Raises NotRight if another libsync is."""
    take(directory)
    try:
        yield
    finally:
        fcntl.flock(directory.fd, fcntl.LOCK_UN)


def take(directory: Directory) -> None:
    """Lock the directory for as long as its descriptor is open. Raises NotRight if another libsync has it."""
    try:
        fcntl.flock(directory.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        finding = Finding("kept_by_another", directory.path, "another isolator-libsync keeps this directory")
        raise NotRight(finding) from error


def examine_path(wanted: Wanted) -> list[Finding]:
    """Everything that is wrong with the node, without touching it."""
    try:
        with open_directory(wanted.directory) as directory:
            return examine_all(directory, wanted)
    except OSError as error:
        return [cannot_read(wanted.directory, error)]


def examine_all(directory: Directory, wanted: Wanted) -> list[Finding]:
    """Everything that is wrong in an open directory, without touching it."""
    findings = [wanted.unsuitable] if wanted.unsuitable else []
    findings += _examine_directory(directory, wanted)
    for file in wanted.files:
        findings += examine(directory, file)
    return findings


def put_right(directory: Directory, wanted: Wanted) -> Outcome:
    """Make the node right as far as possible. The caller holds the directory."""
    clear_leftovers(directory, wanted.files)
    before = examine_all(directory, wanted)
    if not before:
        return Outcome([])
    if any(finding.code in ("noexec", "unsuitable") for finding in before):
        # Installed there, the files would let a pod start whose containers load nothing.
        return Outcome(before)
    failures = _attempt(lambda: _repair_directory(directory, wanted))
    failures += _attempt(lambda: _repair_files(directory, wanted))
    if wanted.region_dir and _examine_region_dir(directory, wanted.attributes):
        failures += _attempt(lambda: _repair_region_dir(directory, wanted.attributes))
    after = examine_all(directory, wanted)
    repaired = [finding for finding in before if (finding.code, finding.path) not in {(f.code, f.path) for f in after}]
    return Outcome([*failures, *after], repaired)


def _attempt(repair: Callable[[], None]) -> list[Finding]:
    """Why the repair could not be done, nothing if it was. One that fails keeps no other from being tried."""
    try:
        repair()
    except NotRight as error:
        return [error.finding]
    return []


def sync(directory: Directory, wanted: Wanted) -> None:
    """Bring files that were found right to the disk: whoever wrote them may have died before. Raises NotRight."""
    try:
        for file in wanted.files:
            fd = os.open(file.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory.fd)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        os.fsync(directory.fd)
    except OSError as error:
        raise NotRight(cannot_write(directory.path, "sync", error)) from error


def _examine_directory(directory: Directory, wanted: Wanted) -> list[Finding]:
    findings = []
    status = os.fstat(directory.fd)
    if os.fstatvfs(directory.fd).f_flag & os.ST_NOEXEC:
        findings.append(noexec(directory.path))
    if status.st_uid != wanted.attributes.uid:
        message = f"belongs to user {status.st_uid}, not {wanted.attributes.uid}"
        findings.append(Finding("directory", directory.path, message))
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        mode = stat.S_IMODE(status.st_mode)
        message = f"has mode {mode:04o}: others than its owner may replace the files"
        findings.append(Finding("directory", directory.path, message))
    if wanted.region_dir:
        findings += _examine_region_dir(directory, wanted.attributes)
    return findings


def _open_region_dir(directory: Directory) -> int:
    return os.open(CONTAINERS_DIR, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory.fd)


def _examine_region_dir(directory: Directory, attributes: Attributes) -> list[Finding]:
    path = directory.path / CONTAINERS_DIR
    try:
        fd = _open_region_dir(directory)
    except FileNotFoundError:
        return [Finding("missing", path, "the directory is missing")]
    except NotADirectoryError:
        return [Finding("directory", path, "is not a directory")]
    except OSError as error:
        return [Finding("directory", path, f"cannot be opened: {error.strerror}")]
    try:
        status = os.fstat(fd)
        findings = []
        if stat.S_IMODE(status.st_mode) != _REGION_DIR_MODE:
            message = f"has mode {stat.S_IMODE(status.st_mode):04o}, not {_REGION_DIR_MODE:04o}"
            findings.append(Finding("mode", path, message))
        if status.st_uid != attributes.uid:
            findings.append(Finding("owner", path, f"belongs to user {status.st_uid}, not {attributes.uid}"))
        wanted_type = attributes.selinux_type
        if wanted_type is not None and not selinux.has_type(fd, wanted_type):
            findings.append(Finding("selinux_type", path, f"does not have the SELinux type {wanted_type} at level s0"))
        return findings
    finally:
        os.close(fd)


def _repair_directory(directory: Directory, wanted: Wanted) -> None:
    try:
        status = os.fstat(directory.fd)
        if status.st_uid != wanted.attributes.uid:
            os.fchown(directory.fd, wanted.attributes.uid, -1)
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            os.fchmod(directory.fd, stat.S_IMODE(status.st_mode) & ~(stat.S_IWGRP | stat.S_IWOTH))
    except OSError as error:
        raise NotRight(cannot_write(directory.path, "set owner and mode", error)) from error


def _repair_region_dir(directory: Directory, attributes: Attributes) -> None:
    """Make the directory, its owner, mode and label right; what containers make in it inherits the label."""
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(CONTAINERS_DIR, 0o700, dir_fd=directory.fd)
        fd = _open_region_dir(directory)
        try:
            if os.fstat(fd).st_uid != attributes.uid:
                os.fchown(fd, attributes.uid, -1)
            os.fchmod(fd, _REGION_DIR_MODE)
            if attributes.selinux_type is not None and not selinux.has_type(fd, attributes.selinux_type):
                selinux.set_type(fd, attributes.selinux_type)
        finally:
            os.close(fd)
    except OSError as error:
        raise NotRight(cannot_write(directory.path / CONTAINERS_DIR, "make the directory", error)) from error


def _repair_files(directory: Directory, wanted: Wanted) -> None:
    for file in wanted.files:
        _repair_file(directory, file)


def _repair_file(directory: Directory, file: NodeFile) -> None:
    findings = examine(directory, file)
    if any(finding.code in _IN_PLACE for finding in findings):
        # First, for content that cannot be read because of the mode.
        try:
            adjust(directory, file)
        except OSError as error:
            log.info("not_adjusted", path=str(directory.path / file.name), error=error.strerror, then="replaced")
        else:
            findings = examine(directory, file)
    if findings:
        replace(directory, file)
