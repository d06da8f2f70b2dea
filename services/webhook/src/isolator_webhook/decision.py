"""From a pod to what is to be done with it, without a look at anything else."""

import re

from msgspec import Struct
from msgspec.structs import replace

from isolator_core import requests
from isolator_core.go_numbers import MOST_INT64
from isolator_core.names import INJECT_ANNOTATION, WEBHOOK_LABEL
from isolator_core.requests import Memory, Origin, Request
from isolator_webhook.options import Options, Treatment
from isolator_webhook.pod import Pod

MIRROR_ANNOTATION = "kubernetes.io/config.mirror"
DEFAULT_SCHEDULER = "default-scheduler"

# Go's strings.EqualFold(value, "false"), which upstream asks.
_FALSE = re.compile("false", re.IGNORECASE)


class Skip(Struct, frozen=True):
    """The pod is admitted as it is."""

    reason: str


class Deny(Struct, frozen=True):
    """The pod is refused. `reason` is for counting, `message` for its author."""

    reason: str
    message: str


class Share(Struct, frozen=True):
    """These containers get their shares. `translate`: HAMi's resources become KAI's annotations. `exempt`: no cap."""

    requests: tuple[Request, ...]
    notices: tuple[str, ...] = ()
    translate: bool = False
    exempt: bool = False


def opted_out(pod: Pod) -> str | None:
    """The field by which a pod opts out as upstream lets it, None where it does not.

    The annotation `kai-resource-isolator.io/inject` is `false` in any case of letters, or the label
    `kai-resource-isolator.io/webhook` is `ignore`.
    """
    if _FALSE.fullmatch(pod.annotations.get(INJECT_ANNOTATION, "")):
        return f"annotation {INJECT_ANNOTATION}"
    if (pod.metadata.labels or {}).get(WEBHOOK_LABEL) == "ignore":
        return f"label {WEBHOOK_LABEL}"
    return None


def _scheduler(pod: Pod) -> str:
    return pod.spec.scheduler_name or DEFAULT_SCHEDULER


def _placement_notices(pod: Pod, found: tuple[Request, ...], options: Options) -> list[str]:
    """Where KAI will not give the GPU that was asked for."""
    notices = []
    scheduler = _scheduler(pod)
    if pod.spec.node_name:
        notices.append(
            f"spec.nodeName is {pod.spec.node_name}: no scheduler sees this pod, so {options.kai_scheduler} gives it "
            "no share of a GPU; its limit holds on whatever GPU it reaches"
        )
    elif scheduler != options.kai_scheduler:
        notices.append(
            f"spec.schedulerName is {scheduler}: only {options.kai_scheduler} gives the share that is asked for; the "
            "limit holds on whatever GPU the pod reaches"
        )
    for request in found:
        if request.origin is Origin.CONTAINER and not options.kai_reads_containers:
            notices.append(
                f"container {request.container}: KAI before 0.18 does not read nvidia.com/container.* annotations and "
                "gives this container no GPU"
            )
        if isinstance(request.memory, Memory) and request.memory.mib > MOST_INT64:
            notices.append(
                f"container {request.container}: KAI's scheduler ignores a gpu-memory above {MOST_INT64}, so this pod "
                "gets no GPU"
            )
    return notices


def _container_notices(pod: Pod, found: tuple[Request, ...]) -> list[str]:
    """Where a container may undo its limit by its own rights."""
    notices = []
    for request in found:
        container = pod.spec.container(request.position, init=request.init)
        reason = container.may_unmount()
        if reason is not None:
            notices.append(
                f"container {request.container}: {reason} lets it unmount what caps it: its limit binds it only as "
                "long as it lets it"
            )
    return notices


def _by_resources(pod: Pod, found: tuple[Request, ...], options: Options) -> Skip | Deny | Share:
    """HAMi's resources: KAI's nodes do not advertise them, and HAMi's own scheduler brings its own library."""
    scheduler = _scheduler(pod)
    if scheduler == options.hami_scheduler:
        return Skip("hami_scheduler")
    if options.hami_resources == "cap":
        return Share(found, tuple(_container_notices(pod, found)))
    if scheduler != options.kai_scheduler:
        return Skip("other_scheduler")
    if len(found) > 1:
        asking = ", ".join(request.container for request in found)
        return Deny(
            "several_containers",
            f"containers {asking} ask for shares by HAMi's resources: {options.kai_scheduler} gives a share to one "
            "container of a pod, accepted is one of them",
        )
    return Share(found, tuple(_container_notices(pod, found)), translate=True)


def decide(pod: Pod, options: Options, treatment: Treatment = "default") -> Skip | Deny | Share:
    """What to do with a pod that is being created."""
    if MIRROR_ANNOTATION in pod.annotations:
        return Skip("mirror_pod")
    heeded = options.pod_opt_out and treatment != "enforce"
    opt_out = opted_out(pod)
    if opt_out is not None and heeded:
        return Skip("opted_out")
    try:
        found = requests.parse(
            requests.Pod(pod.annotations, pod.spec.init_containers or (), pod.spec.containers), options.resources
        )
    except requests.RequestRefused as refused:
        return Deny("request_refused", str(refused))
    if not found:
        return Skip("no_request")
    if pod.spec.os is not None and pod.spec.os.name == "windows":
        return Deny("windows", "spec.os.name is windows: a share of a GPU is enforced on linux, which is accepted")
    if found[0].origin is Origin.HAMI:
        decision = _by_resources(pod, found, options)
    else:
        placement = [] if found[0].origin is Origin.CORES else _placement_notices(pod, found, options)
        decision = Share(found, (*placement, *_container_notices(pod, found)))
    if not isinstance(decision, Share):
        return decision
    if opt_out is not None:
        decision = replace(decision, notices=(f"the opt-out by {opt_out} does not count here", *decision.notices))
    return replace(decision, exempt=True) if treatment == "exempt" else decision
