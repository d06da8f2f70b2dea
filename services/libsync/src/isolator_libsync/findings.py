"""What can be wrong with a node, and how it is said."""

import errno
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Damage = Literal["missing", "not_a_file", "content", "mode", "owner", "selinux_type", "not_executable", "directory"]
"""What can befall a file or the directory."""

Obstacle = Literal["noexec", "read_only", "full", "write_failed", "unsuitable", "kept_by_another"]
"""What keeps the node from being made right."""

Code = Literal[Damage, Obstacle]
"""The kinds of findings, as `check --json` and the metrics name them."""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with the node: its kind, the path it is about and one sentence."""

    code: Code
    path: Path
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


class NotRight(Exception):
    """The node could not be made right; carries the finding that says why."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(str(finding))
        self.finding = finding


OTHER_DIRECTORY = "choose with --host-dir a directory that is writable and not mounted noexec"


def noexec(directory: Path) -> Finding:
    """No program can load a library from this directory."""
    return Finding(
        "noexec",
        directory,
        f"the file system is mounted noexec, so that no program can load the library from it; {OTHER_DIRECTORY}",
    )


def cannot_read(path: Path, error: OSError) -> Finding:
    """A directory of the node that cannot be looked at."""
    return Finding("directory", path, f"cannot be looked at: {os.strerror(error.errno or 0)}")


def cannot_write(path: Path, doing: str, error: OSError) -> Finding:
    """Why a file or directory of the node could not be written: the errno in words, and what to do about it."""
    reason = os.strerror(error.errno or 0)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Finding("full", path, f"cannot {doing}: {reason}; free space on the file system of {path.parent}")
    if error.errno == errno.EROFS:
        return Finding("read_only", path, f"cannot {doing}: {reason}; {OTHER_DIRECTORY}")
    return Finding("write_failed", path, f"cannot {doing}: {reason}")
