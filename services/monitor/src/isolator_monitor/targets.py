"""Which region belongs to which container: by what the API server says of the pod, never by what a tenant wrote."""

from collections.abc import Iterable

import msgspec

from isolator_core import names
from isolator_monitor.pods import Pod


class Target(msgspec.Struct, frozen=True):
    """A container whose region is looked for."""

    uid: str
    container: str

    @property
    def directory(self) -> str:
        """Name of the region's directory."""
        return names.region_dir(self.uid, self.container)


def targets(pods: Iterable[Pod]) -> tuple[Target, ...]:
    """Every container of every pod that has not ended."""
    return tuple(
        Target(pod.metadata.uid, container.name)
        for pod in pods
        if not pod.ended and pod.metadata.uid
        for container in pod.containers()
    )
