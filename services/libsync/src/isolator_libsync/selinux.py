"""SELinux labels of the files, where a type is asked for.

Under an enforcing policy a container may read and map only files of certain types, `container_file_t` by default, and
only at its own level or at `s0` (container-selinux: container.te; SELinux: Multi-Category Security).
"""

import os
from pathlib import Path

ATTRIBUTE = "security.selinux"


def is_enabled(filesystems: Path = Path("/proc/filesystems")) -> bool:
    """True if this kernel runs SELinux: only then is selinuxfs known to it (Linux: security/selinux/selinuxfs.c)."""
    return any(line.split()[-1:] == ["selinuxfs"] for line in filesystems.read_text().splitlines())


def context(selinux_type: str) -> str:
    """The whole label of a file that every container may read."""
    return f"system_u:object_r:{selinux_type}:s0"


def has_type(fd: int, selinux_type: str) -> bool:
    """True if the open file has this type at level `s0`, whatever its user and role."""
    try:
        label = os.getxattr(fd, ATTRIBUTE).rstrip(b"\0").decode()
    except OSError:
        return False
    return label.split(":", 2)[2:] == [f"{selinux_type}:s0"]


def set_type(fd: int, selinux_type: str) -> None:
    """Label the open file. Raises OSError where the policy or the file system refuses."""
    os.setxattr(fd, ATTRIBUTE, context(selinux_type).encode() + b"\0")
