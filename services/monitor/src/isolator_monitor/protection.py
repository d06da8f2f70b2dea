"""Containers that have a share and are not held to it, by reason."""

import posixpath
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from isolator_core import names
from isolator_core.region import Kind
from isolator_monitor.containers import ContainerState
from isolator_monitor.pods import Pod
from isolator_monitor.targets import mount_over


class Reason(StrEnum):
    """Why a container is not held to its share."""

    NO_MOUNTS = "no_mounts"
    """It asked for a share, and the library or the preload file is not mounted."""
    NOT_A_FILE = "not_a_file"
    """On this node a directory stands in place of the library or the preload file."""
    NO_LIMIT = "no_limit"
    """The library is there, and no limit: processes that use CUDA run without one, or do not start."""
    NO_REGION = "no_region"
    """NVML shows a process of the container on a GPU that is not attached to its region."""
    LIMIT_ABOVE_SHARE = "limit_above_share"
    """The limit in force is above what the container was promised."""


@dataclass(frozen=True)
class Unprotected:
    """One container and one reason."""

    namespace: str
    pod: str
    uid: str
    container: str
    reason: Reason
    text: str
    """A sentence for a person."""


def find(
    states: Iterable[ContainerState], pods: Iterable[Pod], container_dir: str, host_problem: str
) -> tuple[Unprotected, ...]:
    """Every unprotected container with each reason that holds."""
    by_uid = {pod.metadata.uid: pod for pod in pods}
    found = []
    for state in states:
        pod = by_uid[state.uid]
        if pod.status.phase == "Pending" and state.container not in pod.container_ids().values():
            continue
        for reason, text in _reasons(state, pod, container_dir, host_problem).items():
            found.append(Unprotected(state.namespace, state.pod, state.uid, state.container, reason, text))
    return tuple(found)


def _reasons(state: ContainerState, pod: Pod, container_dir: str, host_problem: str) -> Mapping[Reason, str]:
    reasons: dict[Reason, str] = {}
    missing = _missing_mounts(state, pod, container_dir)
    if missing:
        reasons[Reason.NO_MOUNTS] = f"nothing is mounted at {' and '.join(missing)}"
        return reasons
    if host_problem:
        reasons[Reason.NOT_A_FILE] = host_problem
    limit, why = state.promised
    enforced = {device.limit for device in state.devices if device.limit is not None} if state.region else set()
    if why and not any(enforced):
        reasons[Reason.NO_LIMIT] = why
    elif 0 in enforced and limit != 0 and state.request:
        reasons[Reason.NO_LIMIT] = "its region says that no limit is in force"
    attached = {process.host_pid for process in state.region.processes} if state.region else set()
    if state.region is None and state.error == Kind.ABSENT and state.gpu_pids:
        reasons[Reason.NO_REGION] = f"processes {_listed(state.gpu_pids)} use a GPU and there is no region"
    elif state.region and state.region.liveness and 0 not in attached and state.gpu_pids - attached:
        pids = _listed(state.gpu_pids - attached)
        reasons[Reason.NO_REGION] = f"processes {pids} use a GPU and are not attached to the region"
    if limit and any(value > limit for value in enforced):
        reasons[Reason.LIMIT_ABOVE_SHARE] = f"{max(enforced)} bytes are in force, {limit} were promised"
    return reasons


def _missing_mounts(state: ContainerState, pod: Pod, container_dir: str) -> list[str]:
    """Paths of the library and the preload file at which nothing is mounted.

    Upstream mounts the library's whole directory, so a mount above the library counts.
    """
    container = next(container for index, container in pod.containers() if index == state.index)
    library = posixpath.join(container_dir, names.LIBRARY_FILE)
    return [path for path in (library, names.PRELOAD_PATH) if mount_over(container, path) is None]


def _listed(pids: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(pids)[:5]))
