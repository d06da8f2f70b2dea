"""Say on the Node object whether the node is right, so that schedulers and people can wait for it."""

import datetime
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import structlog
from pydantic import AfterValidator, Field

from isolator_core.errors import SettingsError
from isolator_libsync.api import MERGE_PATCH, STRATEGIC_MERGE_PATCH, Api, ApiError, ApiSettings, connect
from isolator_libsync.findings import Finding

log = structlog.get_logger()

REFRESH_SECONDS = 300
"""After so long the node is asked whether it still says what it should."""

RETRY_SECONDS = 5
MESSAGE_LENGTH = 1024

_PREFIX = r"([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?"
_NAME = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"


def _qualified(value: str) -> str:
    if not re.fullmatch(_PREFIX + _NAME, value):
        raise ValueError("accepted is a qualified name, for example kai-resource-isolator.io/ready")
    return value


def _node_name(value: str) -> str:
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", value):
        raise ValueError("accepted is the name of a Kubernetes node")
    return value


class MarkSettings(ApiSettings):
    """What is said on the Node object."""

    node_name: Annotated[str, AfterValidator(_node_name)] | None = Field(
        None, description="name of this node, needed for all that asks the Kubernetes API"
    )
    node_label: Annotated[str, AfterValidator(_qualified)] | None = Field(
        None, description="label of the Node object that is kept at true while the node is right, else at false"
    )
    node_condition: Annotated[str, AfterValidator(_qualified)] | None = Field(
        None, description="type of a condition of the Node object that is kept likewise, with the reason"
    )


@dataclass(frozen=True)
class Mark:
    """Where the mark is made."""

    api: Api
    node_name: str
    label: str | None
    condition: str | None

    @property
    def path(self) -> str:
        return f"/api/v1/nodes/{self.node_name}"

    def write(self, findings: Sequence[Finding]) -> bool:
        """Make the Node object say this; True if it did not already. Raises ApiError."""
        node = self.api.request("GET", self.path)
        written = False
        if self.label is not None:
            value = "false" if findings else "true"
            if (node["metadata"].get("labels") or {}).get(self.label) != value:
                self._patch_label(value)
                written = True
        if self.condition is not None:
            conditions = node.get("status", {}).get("conditions") or []
            found: dict[str, str] = next((one for one in conditions if one.get("type") == self.condition), {})
            wanted = _condition(self.condition, findings)
            if any(found.get(key) != value for key, value in wanted.items()):
                self._patch_condition(found, wanted)
                written = True
        return written

    def remove(self) -> None:
        """Take label and condition off the Node object. Raises ApiError."""
        if self.label is not None:
            self._patch_label(None)
        if self.condition is not None:
            self._patch_conditions({"$patch": "delete", "type": self.condition})

    def _patch_label(self, value: str | None) -> None:
        self.api.request("PATCH", self.path, {"metadata": {"labels": {self.label: value}}}, MERGE_PATCH)

    def _patch_condition(self, found: dict[str, str], wanted: dict[str, str]) -> None:
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        changed = found.get("status") != wanted["status"]
        times = {"lastHeartbeatTime": now} | ({"lastTransitionTime": now} if changed else {})
        self._patch_conditions(wanted | times)

    def _patch_conditions(self, entry: dict[str, str]) -> None:
        # Conditions merge by their type (Kubernetes: api/core/v1, NodeStatus.Conditions, patchMergeKey=type).
        body = {"status": {"conditions": [entry]}}
        self.api.request("PATCH", f"{self.path}/status", body, STRATEGIC_MERGE_PATCH)


def _condition(kind: str, findings: Sequence[Finding]) -> dict[str, str]:
    if not findings:
        return {"type": kind, "status": "True", "reason": "Right", "message": "the files of the node are right"}
    reason = "".join(word.capitalize() for word in findings[0].code.split("_"))
    message = "; ".join(map(str, findings))[:MESSAGE_LENGTH]
    return {"type": kind, "status": "False", "reason": reason, "message": message}


def from_settings(settings: MarkSettings) -> Mark | None:
    """The mark that the settings ask for, None if they ask for none. Raises SettingsError."""
    if settings.node_label is None and settings.node_condition is None:
        return None
    if settings.node_name is None:
        raise SettingsError(
            "--node-name (ISOLATOR_LIBSYNC_NODE_NAME) is required with --node-label or --node-condition"
        )
    return Mark(connect(settings), settings.node_name, settings.node_label, settings.node_condition)


class Marker:
    """Writes the mark on a thread of its own, so that a slow API server never holds up a repair."""

    def __init__(self, mark: Mark, record: Callable[[bool], None]) -> None:
        """`record` is told of each attempt to write: True if it did, False if it failed."""
        self._mark = mark
        self._record = record
        self._findings: Sequence[Finding] | None = None
        self._changed = threading.Event()
        threading.Thread(target=self._run, name="node mark", daemon=True).start()

    def tell(self, findings: Sequence[Finding]) -> None:
        """What the node is like now."""
        if findings != self._findings:
            self._findings = findings
            self._changed.set()

    def _run(self) -> None:
        wait: float | None = None
        while True:
            self._changed.wait(wait)
            self._changed.clear()
            if self._findings is not None:
                wait = REFRESH_SECONDS if self._write(self._findings) else RETRY_SECONDS

    def _write(self, findings: Sequence[Finding]) -> bool:
        try:
            if self._mark.write(findings):
                self._record(True)
                log.info("node_marked", node=self._mark.node_name, right=not findings)
        except ApiError as error:
            self._record(False)
            log.error("node_not_marked", node=self._mark.node_name, error=str(error))
            return False
        return True
