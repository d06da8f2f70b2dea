"""The one place that writes: a new file beside the old one, synced and checked, then put in its place by one rename."""

import contextlib
import ctypes
import errno
import os
import stat
import time
from collections.abc import Iterable

from isolator_libsync import selinux
from isolator_libsync.files import Directory, NodeFile, examine
from isolator_libsync.findings import Finding, NotRight, cannot_write

_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_RENAME_EXCHANGE = 2
_libc = ctypes.CDLL(None, use_errno=True)


def temporary_name(name: str) -> str:
    """The name under which a new file is made. It is fixed: whoever holds the directory's lock may clear it."""
    return f".{name}.new"


def replace(directory: Directory, file: NodeFile) -> None:
    """Make the file anew and put it in its place. Until the rename what stood there is untouched.

    Raises NotRight if it cannot be done; what stood in the file's place then stands there still.
    """
    temporary = temporary_name(file.name)
    path = directory.path / file.name
    doing = "clear what an earlier attempt left"
    try:
        _clear(directory, temporary)
        doing = "write"
        fd = os.open(temporary, _NEW_FILE, 0o600, dir_fd=directory.fd)
        try:
            _fill(fd, file)
            doing = "sync"
            os.fsync(fd)
            # What is read back for the check then comes from the disk, not from memory.
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)
        findings = examine(directory, file, temporary)
        if findings:
            raise NotRight(Finding(findings[0].code, path, f"the new file {findings[0].message}"))
        doing = "put the new file in place"
        _put_in_place(directory, temporary, file.name)
        doing = "sync the directory"
        os.fsync(directory.fd)
    except OSError as error:
        raise NotRight(cannot_write(path, doing, error)) from error
    finally:
        clear_leftovers(directory, [file])


def clear_leftovers(directory: Directory, files: Iterable[NodeFile]) -> None:
    """Remove what an attempt that was interrupted left. What cannot be removed is said when it is in the way."""
    for file in files:
        with contextlib.suppress(OSError):
            _clear(directory, temporary_name(file.name))


def adjust(directory: Directory, file: NodeFile) -> None:
    """Set mode, owner and label of the file that stands there. Raises OSError where that is not allowed.

    Running containers hold this very file, so that setting it right helps them too, where a replacement would not.
    """
    os.chmod(file.name, file.mode, dir_fd=directory.fd)
    fd = os.open(file.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory.fd)
    try:
        _set_attributes(fd, file)
        os.fsync(fd)
    finally:
        os.close(fd)


def _fill(fd: int, file: NodeFile) -> None:
    rest = memoryview(file.content)
    while rest:
        rest = rest[os.write(fd, rest) :]
    os.fchmod(fd, file.mode)
    _set_attributes(fd, file)


def _set_attributes(fd: int, file: NodeFile) -> None:
    status = os.fstat(fd)
    attributes = file.attributes
    if (status.st_uid, status.st_gid) != (attributes.uid, attributes.gid):
        os.fchown(fd, attributes.uid, attributes.gid)
    if attributes.selinux_type is not None and not selinux.has_type(fd, attributes.selinux_type):
        selinux.set_type(fd, attributes.selinux_type)


def _put_in_place(directory: Directory, temporary: str, name: str) -> None:
    try:
        os.rename(temporary, name, src_dir_fd=directory.fd, dst_dir_fd=directory.fd)
    except IsADirectoryError:
        _replace_directory(directory, temporary, name)


def _replace_directory(directory: Directory, temporary: str, name: str) -> None:
    if _exchange(directory, temporary, name):
        _set_aside(directory, temporary, name)
    else:
        # No right file stands there, so none is missing for this moment.
        _set_aside(directory, name, name)
        os.rename(temporary, name, src_dir_fd=directory.fd, dst_dir_fd=directory.fd)


def _exchange(directory: Directory, first: str, second: str) -> bool:
    """Swap two names in one step (renameat2(2)); False where the file system or an older musl cannot."""
    swap = getattr(_libc, "renameat2", None)
    if swap is None:
        return False
    if swap(directory.fd, first.encode(), directory.fd, second.encode(), _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS):
        return False
    raise OSError(number, os.strerror(number))


def _set_aside(directory: Directory, found: str, name: str) -> None:
    """Remove the directory that stood in a file's place; one that is not empty is kept under another name."""
    try:
        os.rmdir(found, dir_fd=directory.fd)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        kept = f"{name}.found-{time.time_ns()}"
        os.rename(found, kept, src_dir_fd=directory.fd, dst_dir_fd=directory.fd)


def _clear(directory: Directory, temporary: str) -> None:
    try:
        status = os.stat(temporary, dir_fd=directory.fd, follow_symlinks=False)
    except FileNotFoundError:
        return
    if stat.S_ISDIR(status.st_mode):
        _set_aside(directory, temporary, temporary.removeprefix(".").removesuffix(".new"))
    else:
        os.unlink(temporary, dir_fd=directory.fd)
