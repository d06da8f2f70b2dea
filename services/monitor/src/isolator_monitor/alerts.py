"""Tell people of what is wrong with a container: a log line, and an Event on the pod."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from isolator_core import names
from isolator_monitor.pods import Pod
from isolator_monitor.protection import Unprotected

REPEAT_SECONDS = 3600.0
"""How soon the same is said again: the API server forgets Events after an hour. A tenant that makes something wrong and
right in turn is heard no more often."""
RETRY_SECONDS = 60.0
UNPROTECTED = "GpuShareNotEnforced"
NOTICE = "GpuShareNotice"

_log = structlog.get_logger()


@dataclass(frozen=True)
class Alert:
    """One thing to say of one pod."""

    namespace: str
    pod: str
    uid: str
    reason: str
    """Of the Event, in its usual form."""
    text: str
    key: str
    """What it is about, besides the pod."""

    @property
    def name(self) -> str:
        """The same for the same thing; the beginning of its Event's name."""
        digest = hashlib.sha256(f"{self.uid}/{self.reason}/{self.key}".encode()).hexdigest()[:16]
        # A name that ends there in what no name ends in would be refused, again and again.
        return f"{self.pod[:200].rstrip('-.')}.{digest}"


class Recorder(Protocol):
    """Where Events go. `record` returns at once; what could not be recorded is given back by `lost`."""

    def record(self, alert: Alert) -> None: ...

    def lost(self) -> list[Alert]: ...


def alerts(unprotected: Iterable[Unprotected], pods: Iterable[Pod]) -> list[Alert]:
    """What is to say now: unprotected containers, and the notices that the webhook left on pods."""
    found = [
        Alert(
            namespace=one.namespace,
            pod=one.pod,
            uid=one.uid,
            reason=UNPROTECTED,
            text=f"container {one.container} is not held to its GPU share ({one.reason}): {one.text}",
            key=f"{one.container}/{one.reason}",
        )
        for one in unprotected
    ]
    for pod in pods:
        notice = pod.annotations.get(names.NOTICE_ANNOTATION)
        if notice and not pod.ended:
            meta = pod.metadata
            # The notice is no part of the key: whoever may edit the pod may write another one at any time.
            found.append(Alert(meta.namespace, meta.name, meta.uid, NOTICE, " ".join(notice.split())[:1000], ""))
    return found


@dataclass
class Alerts:
    """Says each thing when it was there twice in a row, and hourly while it lasts.

    Twice, because a process that ends while the node is read can look as if it had never been attached.
    """

    recorder: Recorder | None
    _seen: frozenset[Alert] = frozenset()
    _said: dict[str, tuple[Alert, float]] = field(default_factory=dict)

    def tell(self, found: Iterable[Alert], uids: frozenset[str], now: float) -> None:
        """Say what has not been said lately; `uids` are the pods of now, `now` in seconds."""
        for alert in self.recorder.lost() if self.recorder else []:
            if alert.name in self._said:
                self._said[alert.name] = (alert, now - REPEAT_SECONDS + RETRY_SECONDS)
        self._said = {name: said for name, said in self._said.items() if said[0].uid in uids}
        found = frozenset(found)
        names_before = {alert.name for alert in self._seen}
        self._seen = found
        for alert in sorted(found, key=lambda one: (one.namespace, one.name)):
            earlier = self._said.get(alert.name)
            if alert.name not in names_before or (earlier and now - earlier[1] < REPEAT_SECONDS):
                continue
            self._said[alert.name] = (alert, now)
            event = "container_unprotected" if alert.reason == UNPROTECTED else "pod_notice"
            _log.warning(event, namespace=alert.namespace, pod=alert.pod, text=alert.text)
            if self.recorder:
                self.recorder.record(alert)
