"""From a pod to what is to be done with it, without a look at anything else."""

import re
from dataclasses import dataclass

from isolator_core import requests
from isolator_core.names import INJECT_ANNOTATION
from isolator_webhook.pod import Pod

# Go's strings.EqualFold(value, "false"), which upstream asks.
_FALSE = re.compile("false", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Skip:
    """The pod is admitted as it is."""

    reason: str


@dataclass(frozen=True, slots=True)
class Deny:
    """The pod is refused. `reason` is for counting, `message` for its author."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Share:
    """These containers get their shares."""

    requests: tuple[requests.Request, ...]

    @property
    def needs_basis(self) -> bool:
        """Whether a fraction has to become bytes."""
        return any(isinstance(request.memory, requests.Fraction) for request in self.requests)


def opted_out(pod: Pod) -> bool:
    """Upstream's opt-out: the annotation `kai-resource-isolator.io/inject` is `false` in any case of letters."""
    return _FALSE.fullmatch(pod.annotations.get(INJECT_ANNOTATION, "")) is not None


def decide(pod: Pod) -> Skip | Deny | Share:
    """What to do with a pod that is being created."""
    if opted_out(pod):
        return Skip("opted_out")
    try:
        found = requests.parse(requests.Pod(pod.annotations, pod.spec.init_containers or (), pod.spec.containers))
    except requests.RequestRefused as refused:
        return Deny("request_refused", str(refused))
    return Share(found) if found else Skip("no_request")
