"""What a mount point shows (proc_pid_mountinfo(5))."""

import re
from pathlib import Path

MOUNTINFO = Path("/proc/self/mountinfo")


def shown_at(mount_point: Path, mountinfo: str) -> str | None:
    """Which directory of its file system is mounted exactly here; None if this is no mount point.

    The kernel follows that directory when it is renamed, and marks it when it is removed: the answer then changes.
    """
    shown = None
    for line in mountinfo.splitlines():
        fields = line.split(" ")
        if _unescape(fields[4]) == str(mount_point):
            shown = fields[3]
    return shown


def _unescape(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)
