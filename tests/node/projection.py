"""Files of a projected volume, replaced all at once, as the kubelet writes them (k8s.io/kubernetes: pkg/volume/util/
atomic_writer.go): `..data` is a link to a directory that holds one generation, every file a link through `..data`.
"""

import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

DATA = "..data"
NEW_DATA = "..data_tmp"


@dataclass(frozen=True)
class File:
    """Content and permission bits of one projected file."""

    content: bytes
    mode: int


def read(directory: Path) -> dict[str, File]:
    """The files of the present generation by relative path; none if there is no generation yet."""
    data = directory / DATA
    if not data.exists():
        return {}
    generation = data.resolve()
    return {
        str(path.relative_to(generation)): File(path.read_bytes(), path.stat().st_mode & 0o7777)
        for path in generation.rglob("*")
        if path.is_file()
    }


def write(directory: Path, files: Mapping[str, File]) -> bool:
    """Make `files` the content of the volume. A reader through `..data` sees the old or the new ones, never both.

    Returns whether anything changed; the same files do not make a new generation.
    """
    if (directory / DATA).exists() and read(directory) == files:
        return False
    old = (directory / DATA).resolve() if (directory / DATA).exists() else None
    stamp = datetime.now(UTC).strftime("..%Y_%m_%d_%H_%M_%S.")
    generation = Path(tempfile.mkdtemp(prefix=stamp, dir=directory))
    generation.chmod(0o755)
    for name, file in files.items():
        path = generation / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.content)
        path.chmod(file.mode)
    (directory / NEW_DATA).symlink_to(generation.name)
    os.rename(directory / NEW_DATA, directory / DATA)  # noqa: PTH104
    tops = {Path(name).parts[0] for name in files}
    for top in tops:
        link = directory / top
        if not link.is_symlink():
            link.symlink_to(Path(DATA) / top)
    for link in directory.iterdir():
        if link.is_symlink() and link.name != DATA and link.name not in tops:
            link.unlink()
    if old is not None:
        shutil.rmtree(old)
    return True
