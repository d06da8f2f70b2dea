"""Which GPU KAI gave a pod, before the pod's own region says it."""

from collections.abc import Iterable

from isolator_monitor.pods import Pod

GROUP_LABEL = "runai-gpu-group"
UUID_ANNOTATION = "run.ai/reserve_for_gpu_index"
"""Holds the GPU's UUID, not an index (KAI: cmd/resourcereservation)."""


def reserved(pods: Iterable[Pod], namespace: str) -> dict[str, str]:
    """GPU UUID by GPU group, of the reservation pods in KAI's namespace.

    Source: KAI, pkg/binder/binding/resourcereservation/resource_reservation.go. Pods of other namespaces do not
    count: tenants can write any label and annotation on theirs.
    """
    return {
        pod.labels[GROUP_LABEL]: pod.annotations[UUID_ANNOTATION]
        for pod in pods
        if pod.metadata.namespace == namespace and GROUP_LABEL in pod.labels and UUID_ANNOTATION in pod.annotations
    }


def given(pod: Pod, uuids: dict[str, str]) -> tuple[str, ...]:
    """UUIDs of the GPUs that a sharing pod was given; an empty text for one that is not known.

    One device is named by the label's value, several by one label each (KAI: pkg/common/resources/gpu_sharing.go).
    """
    several = sorted(label.partition("/")[2] for label in pod.labels if label.startswith(GROUP_LABEL + "/"))
    groups = several or [pod.labels[GROUP_LABEL]] if several or GROUP_LABEL in pod.labels else []
    return tuple(uuids.get(group, "") for group in groups)
