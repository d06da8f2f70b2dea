"""Be told by the kernel when something changes in a directory (inotify(7))."""

import contextlib
import ctypes
import os
import struct

_CHANGES = {
    "IN_MODIFY": 0x2,
    "IN_ATTRIB": 0x4,
    "IN_CLOSE_WRITE": 0x8,
    "IN_MOVED_FROM": 0x40,
    "IN_MOVED_TO": 0x80,
    "IN_CREATE": 0x100,
    "IN_DELETE": 0x200,
    "IN_DELETE_SELF": 0x400,
    "IN_MOVE_SELF": 0x800,
}
_IN_ONLYDIR = 0x01000000
_BUFFER_SIZE = 64 * (struct.calcsize("iIII") + os.pathconf("/", "PC_NAME_MAX") + 1)

_libc = ctypes.CDLL(None, use_errno=True)


class Watch:
    """Readable (it has a `fileno`) once something has changed in the directory since the last `drain`."""

    def __init__(self, directory_fd: int) -> None:
        """Raises OSError, for example where the user's number of watches is used up."""
        self._fd = _checked(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        try:
            path = f"/proc/self/fd/{directory_fd}".encode()
            _checked(_libc.inotify_add_watch(self._fd, path, sum(_CHANGES.values()) | _IN_ONLYDIR))
        except OSError:
            os.close(self._fd)
            raise

    def fileno(self) -> int:
        return self._fd

    def drain(self) -> None:
        """Forget what has been told so far."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self._fd, _BUFFER_SIZE):
                pass

    def close(self) -> None:
        os.close(self._fd)


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
