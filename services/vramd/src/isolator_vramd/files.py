"""Files that others replace while the program runs: a ConfigMap's, a Secret's."""

from pathlib import Path

Identity = tuple[int, int, int, int]


def identity(path: Path) -> Identity | None:
    """What changes when a file is written or replaced, also through links as volumes use them; None if it is absent."""
    try:
        status = path.stat()
    except OSError:
        return None
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
