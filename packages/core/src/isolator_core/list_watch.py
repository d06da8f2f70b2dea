"""Objects from the API server: a list in pages, then a watch from where it ended, for as long as the program runs."""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import msgspec
import structlog

from isolator_core.cluster_api import ApiError, Gone, ResourceApi, Status, failure_of_status

FIRST_BACKOFF_SECONDS = 0.5
LONGEST_BACKOFF_SECONDS = 30.0
LONGEST_RETRY_AFTER_SECONDS = 60.0
WATCH_SECONDS = (240, 480)
"""A watch is asked to end within these, at random, so that replicas do not all come back at once."""

K = TypeVar("K")
T = TypeVar("T")
C = TypeVar("C", contravariant=True)

_log = structlog.get_logger()


class Sink(Protocol[C]):
    """Where the objects go. Called on the thread of `ListWatch.run`."""

    def replace(self, objects: Sequence[C]) -> None:
        """These are all objects."""

    def apply(self, event: str, changed: C) -> None:
        """This object is new or changed (ADDED, MODIFIED) or gone (DELETED)."""

    def confirm(self) -> None:
        """Nothing else has changed so far."""

    def failed(self, reason: str) -> None:
        """It failed, and will be tried again. `reason` is short and one of few."""


@dataclass
class Backoff:
    """How long to wait after each failure in a row: twice as long each time, of which half at random."""

    failures: int = 0

    def next(self, chance: float) -> float:
        """Seconds to wait now; `chance` is a random number from 0 to 1."""
        longest: float = min(LONGEST_BACKOFF_SECONDS, FIRST_BACKOFF_SECONDS * 2.0 ** min(self.failures, 16))
        self.failures += 1
        return longest * (0.5 + 0.5 * chance)

    def reset(self) -> None:
        """It worked: start over."""
        self.failures = 0


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _ListMetadata(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class _List(msgspec.Struct, Generic[K]):
    items: list[K] | None = None
    metadata: _ListMetadata = msgspec.field(default_factory=_ListMetadata)


class _Versioned(msgspec.Struct):
    metadata: _ListMetadata = msgspec.field(default_factory=_ListMetadata)


_TYPES = frozenset({"ADDED", "MODIFIED", "DELETED", "BOOKMARK"})

_decode_event = msgspec.json.Decoder(_Event).decode
_decode_versioned = msgspec.json.Decoder(_Versioned).decode
_decode_status = msgspec.json.Decoder(Status).decode


def _all_of_it(decoded: T) -> T:
    return decoded


class ListWatch(Generic[K, T]):
    """Keeps a sink in step with the objects of one path. `run` is for a thread of its own.

    `kind` is the msgspec type to which an object is decoded, and `keep` says what of it goes to the sink, by default
    all: a list of thousands never holds more. `wait(seconds)` waits and returns True when it is time to stop.
    """

    def __init__(
        self,
        api: ResourceApi,
        kind: type[K],
        sink: Sink[T],
        wait: Callable[[float], bool],
        keep: Callable[[K], T] | None = None,
    ) -> None:
        self._api = api
        self._decode_list = msgspec.json.Decoder(_List[kind]).decode  # type: ignore[valid-type]
        self._decode_object = msgspec.json.Decoder(kind).decode
        self._keep: Callable[[Any], T] = keep or _all_of_it
        self._sink = sink
        self._wait = wait
        self._version: str | None = None
        self._progressed = False
        self._stopping = False

    def stop(self) -> None:
        """Make `run` return soon; whoever waits in `wait` is the caller's to wake."""
        self._stopping = True
        self._api.stop()

    def run(self) -> None:
        """List and watch until stopped. Every failure is told, logged and tried again after a growing wait."""
        backoff = Backoff()
        while not self._stopping:
            self._progressed = False
            failure: ApiError | None = None
            try:
                if self._version is None:
                    start = time.monotonic()
                    objects = self.list()
                    _log.info("source_read", objects=objects, seconds=round(time.monotonic() - start, 3))
                self._watch()
            except Gone as error:
                failure = ApiError("gone", f"410: {error}")
                self._version = None
            except msgspec.DecodeError as error:
                failure = ApiError("malformed", str(error))
                self._version = None
            except ApiError as error:
                failure = error
            if self._progressed:
                backoff.reset()
            if self._stopping or (failure is None and self._progressed):
                continue
            seconds = backoff.next(random.random())
            if failure is not None:
                seconds = max(seconds, min(failure.retry_after_seconds, LONGEST_RETRY_AFTER_SECONDS))
                self._sink.failed(failure.reason)
                _log.warning(
                    "source_failed", reason=failure.reason, error=str(failure), retry_in_seconds=round(seconds, 1)
                )
            if self._wait(seconds):
                return

    def list(self) -> int:
        """Read all objects, page by page, hand them over at once and return how many they are.

        Raises Gone, ApiError and msgspec.DecodeError.
        """
        objects: list[T] = []
        version, token = "", ""
        while True:
            page = self._decode_list(self._api.page(token))
            objects += map(self._keep, page.items or [])
            # The first page's: every page is of that version, and from an older one nothing is missed.
            version = version or page.metadata.resource_version
            token = page.metadata.continue_
            if not token:
                break
        self._sink.replace(objects)
        self._version = version
        return len(objects)

    def _watch(self) -> None:
        for line in self._api.watch(self._version or "", random.randint(*WATCH_SECONDS)):
            event = _decode_event(line)
            if event.type == "ERROR":
                status = _decode_status(event.object)
                raise failure_of_status(status.code, status.message)
            if event.type not in _TYPES:
                raise ApiError("malformed", f"unknown watch event {event.type!r}")
            if event.type == "BOOKMARK":
                self._sink.confirm()
            else:
                self._sink.apply(event.type, self._keep(self._decode_object(event.object)))
            self._version = _decode_versioned(event.object).metadata.resource_version or self._version
            self._progressed = True
