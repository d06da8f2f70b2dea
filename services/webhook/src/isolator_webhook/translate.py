"""HAMi's resources taken out of a container, and KAI's annotations put in their place."""

from isolator_core.requests import WHOLE, Request, ResourceNames, extras, hami
from isolator_core.requests.model import GPU_RESOURCE
from isolator_webhook.json_patch import Operation, pointer
from isolator_webhook.pod import Container


def annotations(request: Request) -> dict[str, str]:
    """The annotations that ask for the same."""
    found = hami.kai_annotations(request)
    if request.cores is not None:
        found[extras.CORES] = str(request.cores)
    if request.priority is not None and (found or request.cores is not None):
        found[extras.PRIORITY] = str(request.priority)
    return found


def resources(container: Container, where: str, request: Request, names: ResourceNames) -> list[Operation]:
    """Operations that remove the resources; whole GPUs stay, as `nvidia.com/gpu`, which KAI gives."""
    operations = []
    given = container.resources
    for field, amounts in (("limits", given and given.limits), ("requests", given and given.requests)):
        amounts = amounts or {}
        base = f"{where}/resources/{field}"
        keep = request.memory == WHOLE
        operations += [
            Operation("remove", f"{base}/{pointer(name)}")
            for name in names.listed()
            if name in amounts and not (keep and name == GPU_RESOURCE)
        ]
        if keep and field == "limits" and GPU_RESOURCE not in amounts:
            operations.append(Operation("add", f"{base}/{pointer(GPU_RESOURCE)}", str(request.devices)))
    return operations
