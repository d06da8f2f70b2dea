"""The nodes of a cluster: followed on behalf of the event loop, or read once."""

import asyncio
import contextvars
import threading
from collections.abc import Iterable

import msgspec
from kubernetes.client import Configuration
from prometheus_client import CollectorRegistry

from isolator_core.errors import UserError
from isolator_vramd.cluster_source import ClusterSource
from isolator_vramd.metrics import SourceMetrics
from isolator_vramd.node_api import ApiError, Gone, NodeApi
from isolator_vramd.nodes import GpuNode
from isolator_vramd.store import Change, NodeStore

STOP_SECONDS = 2.0


class _Handover:
    """Takes nodes from the source's thread to the store on the loop's."""

    def __init__(self, store: NodeStore, loop: asyncio.AbstractEventLoop) -> None:
        self._store = store
        self._loop = loop

    def replace(self, nodes: Iterable[GpuNode]) -> None:
        self._loop.call_soon_threadsafe(self._store.replace, nodes)

    def apply(self, changes: Iterable[Change]) -> None:
        self._loop.call_soon_threadsafe(self._store.apply, changes)

    def confirm(self) -> None:
        self._loop.call_soon_threadsafe(self._store.confirm)


async def follow(configuration: Configuration, store: NodeStore, metrics: SourceMetrics) -> None:
    """Keep the store in step with the cluster until cancelled. Ends early only by an error of this program."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    stopping = threading.Event()
    source = ClusterSource(NodeApi(configuration), _Handover(store, loop), metrics, stopping.wait)

    def end(error: Exception | None) -> None:
        if ended.done():
            return
        if error is None:
            ended.set_result(None)
        else:
            ended.set_exception(error)

    def run() -> None:
        error = None
        try:
            source.run()
        except Exception as caught:
            error = caught
        if not stopping.is_set():
            loop.call_soon_threadsafe(end, error)

    # A daemon: it may be in the middle of a connection attempt when the program has to end.
    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(run,), name="cluster-source", daemon=True)
    thread.start()
    try:
        await ended
    finally:
        stopping.set()
        source.stop()
        await asyncio.to_thread(thread.join, STOP_SECONDS)


def read(configuration: Configuration, store: NodeStore) -> None:
    """Read all nodes into the store, once. Raises UserError that says why that failed."""
    api = NodeApi(configuration)
    try:
        ClusterSource(api, store, SourceMetrics(CollectorRegistry()), wait=lambda _seconds: True).list()
    except (ApiError, Gone, msgspec.DecodeError) as error:
        raise UserError(f"cannot read the nodes of {configuration.host}: {error}") from error
    finally:
        api.close()
