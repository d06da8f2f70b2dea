"""Which container a process of the node belongs to, by its cgroup."""

import re
from collections.abc import Iterable
from pathlib import Path

import msgspec

# systemd: …-pod<uid with _>.slice/cri-containerd-<id>.scope; cgroupfs: …/pod<uid>/<id>
_CGROUP = re.compile(r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})(?:\.slice)?/(?:[a-z-]*-)?([0-9a-f]{64})")


class Owner(msgspec.Struct, frozen=True):
    """The container that a process runs in."""

    pod_uid: str
    container_id: str


def parse(cgroup: str) -> Owner | None:
    """The owner by the text of `/proc/<pid>/cgroup`; None for a process outside pods."""
    match = _CGROUP.search(cgroup)
    return Owner(match[1].replace("_", "-"), match[2]) if match else None


def owners(pids: Iterable[int], proc: Path = Path("/proc")) -> dict[int, Owner]:
    """Owners of processes, of those that are in a pod and still there."""
    found = {}
    for pid in pids:
        try:
            # Who may make cgroups in its container names them as it likes.
            owner = parse((proc / str(pid) / "cgroup").read_text(errors="replace"))
        except OSError:
            continue
        if owner:
            found[pid] = owner
    return found
