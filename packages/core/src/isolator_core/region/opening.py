"""The way to a file that a tenant made, without ever being led elsewhere.

A path is walked one name at a time and no link is followed. The last step looks before it opens (`O_PATH`): opening a
device can do something, opening a FIFO can wait. What was looked at is then opened through `/proc/self/fd`, so that
nothing can be swapped in between.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from isolator_core.region.errors import Kind, RegionError

_KINDS = {
    errno.ENOENT: Kind.ABSENT,
    errno.ENOTDIR: Kind.NOT_DIRECTORY,
    errno.ELOOP: Kind.LINK,
    errno.EWOULDBLOCK: Kind.BUSY,
    errno.ESTALE: Kind.CHANGED,
}


def as_region_error(error: OSError, what: str) -> RegionError:
    """The region error that an operating system's error on `what` means."""
    return RegionError(_KINDS.get(error.errno or 0, Kind.UNREADABLE), f"{what}: {error.strerror}")


@contextmanager
def open_beneath(root: Path, *names: str) -> Iterator[int]:
    """Descriptor (`O_PATH`) of the directory `root/names…`. Links in `root` are followed, in `names` they are not.

    `names` are single components that the caller knows (never ones listed from a tenant's directory). Raises
    RegionError.
    """
    try:
        descriptor = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise as_region_error(error, str(root)) from error
    try:
        for name in names:
            if name in ("", ".", "..") or "/" in name or "\0" in name:
                raise RegionError(Kind.NOT_DIRECTORY, f"{name!r} is no name of a directory")
            try:
                below = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=descriptor)
            except OSError as error:
                raise as_region_error(error, name) from error
            os.close(descriptor)
            descriptor = below
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def open_regular(
    directory: int, name: str, *, twin: str | None = None, writable: bool = False
) -> Iterator[tuple[int, os.stat_result]]:
    """A descriptor of the regular file `name` in `directory`, read-only if not `writable`, and what `fstat` says of it.

    A file that has hard links is refused, since it may be another tenant's; `twin` is the name in the same directory
    that it may bear as well. Raises RegionError.
    """
    try:
        place = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    except OSError as error:
        raise as_region_error(error, name) from error
    try:
        found = os.fstat(place)
        if stat.S_ISLNK(found.st_mode):
            raise RegionError(Kind.LINK, f"{name} is a symbolic link")
        if not stat.S_ISREG(found.st_mode):
            raise RegionError(Kind.NOT_REGULAR, f"{name} is not a regular file")
        if found.st_nlink > 1 and not (found.st_nlink == 2 and _is_same(directory, twin, found)):
            raise RegionError(Kind.LINK, f"{name} has {found.st_nlink} hard links")
        try:
            access = os.O_RDWR if writable else os.O_RDONLY
            descriptor = os.open(f"/proc/self/fd/{place}", access | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError as error:
            raise as_region_error(error, name) from error
    finally:
        os.close(place)
    try:
        yield descriptor, found
    finally:
        os.close(descriptor)


def _is_same(directory: int, name: str | None, found: os.stat_result) -> bool:
    if name is None:
        return False
    try:
        return os.path.samestat(os.stat(name, dir_fd=directory, follow_symlinks=False), found)
    except OSError:
        return False


def read_exactly(descriptor: int, size: int, offset: int) -> bytes:
    """`size` bytes at `offset`, in private memory. Raises RegionError (`changed`) if the file ends before."""
    try:
        data = os.pread(descriptor, size, offset)
    except OSError as error:
        raise as_region_error(error, f"reading {size} bytes at {offset}") from error
    if len(data) != size:
        raise RegionError(Kind.CHANGED, f"the file ended while {size} bytes at {offset} were read")
    return data
