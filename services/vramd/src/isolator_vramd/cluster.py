"""The nodes of a cluster: followed on behalf of the event loop, or read once."""

import asyncio
import contextvars
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
from kubernetes.client import Configuration
from prometheus_client import CollectorRegistry

from isolator_core.cluster_api import ApiError, Gone, ResourceApi
from isolator_core.errors import UserError
from isolator_core.list_watch import ListWatch
from isolator_vramd.metrics import SourceMetrics
from isolator_vramd.nodes import GpuNode, Node, gpu_node
from isolator_vramd.store import Change, NodeStore

PATH = "/api/v1/nodes"
STOP_SECONDS = 2.0


class Target(Protocol):
    """Where nodes go: a NodeStore."""

    def replace(self, nodes: list[GpuNode]) -> None:
        """These are all GPU nodes."""

    def apply(self, changes: list[Change]) -> None:
        """These nodes changed."""

    def confirm(self) -> None:
        """Nothing else has changed so far."""


class Counted:
    """Hands what the API server says to a target, and counts it."""

    def __init__(self, target: Target, metrics: SourceMetrics) -> None:
        self._target = target
        self._metrics = metrics

    def replace(self, objects: Sequence[Change]) -> None:
        """These are all nodes."""
        self._metrics.lists.inc()
        self._target.replace([node for _, node in objects if node is not None])

    def apply(self, event: str, changed: Change) -> None:
        """This node is new, changed or gone."""
        self._metrics.events.labels(event).inc()
        name, node = changed
        self._target.apply([(name, None if event == "DELETED" else node)])

    def confirm(self) -> None:
        """Nothing else has changed so far."""
        self._metrics.events.labels("BOOKMARK").inc()
        self._target.confirm()

    def failed(self, reason: str) -> None:
        """The API server failed."""
        self._metrics.failures.labels(reason).inc()


def source(
    configuration: Configuration, target: Target, metrics: SourceMetrics, wait: Callable[[float], bool]
) -> ListWatch[Node, Change]:
    """What keeps a target in step with the cluster's nodes. `wait(seconds)` returns True when it is time to stop."""
    api = ResourceApi(configuration, PATH)
    return ListWatch(api, Node, Counted(target, metrics), wait, keep=lambda node: (node.metadata.name, gpu_node(node)))


class _OnLoop:
    """A store, from another thread than its event loop's."""

    def __init__(self, store: NodeStore, loop: asyncio.AbstractEventLoop) -> None:
        self._store = store
        self._loop = loop

    def replace(self, nodes: list[GpuNode]) -> None:
        self._loop.call_soon_threadsafe(self._store.replace, nodes)

    def apply(self, changes: list[Change]) -> None:
        self._loop.call_soon_threadsafe(self._store.apply, changes)

    def confirm(self) -> None:
        self._loop.call_soon_threadsafe(self._store.confirm)


async def follow(configuration: Configuration, store: NodeStore, metrics: SourceMetrics) -> None:
    """Keep the store in step with the cluster until cancelled. Ends early only by an error of this program."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    stopping = threading.Event()
    following = source(configuration, _OnLoop(store, loop), metrics, stopping.wait)

    def fail(error: Exception) -> None:
        if not ended.done():
            ended.set_exception(error)

    def run() -> None:
        try:
            following.run()
        except Exception as error:
            if not stopping.is_set():
                loop.call_soon_threadsafe(fail, error)

    # A daemon: it may be in the middle of a connection attempt when the program has to end.
    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(run,), name="nodes", daemon=True)
    thread.start()
    try:
        await ended
    finally:
        stopping.set()
        following.stop()
        await asyncio.to_thread(thread.join, STOP_SECONDS)


def read(configuration: Configuration, store: NodeStore) -> None:
    """Read all nodes into the store, once. Raises UserError that says why that failed."""
    try:
        source(configuration, store, SourceMetrics(CollectorRegistry()), lambda _seconds: True).list()
    except (ApiError, Gone, msgspec.DecodeError) as error:
        raise UserError(f"cannot read the nodes of {configuration.host}: {error}") from error
