"""The program `isolator-vramd`: its commands and settings."""

import asyncio
import signal
import time
from pathlib import Path

import structlog
from prometheus_client import CollectorRegistry
from pydantic import Field

from isolator_core import names, settings
from isolator_core.settings import Command, Settings
from isolator_vramd import file_source, metrics
from isolator_vramd.affinity import Constraints, parse_constraints
from isolator_vramd.basis import Unknown
from isolator_vramd.server import Server
from isolator_vramd.store import NodeStore

STOP_GRACE_SECONDS = 5.0

_log = structlog.get_logger()


class SourceSettings(Settings):
    """Where the nodes come from."""

    nodes_file: Path = Field(description="a Kubernetes NodeList in YAML or JSON; `serve` follows its changes")
    per_gpu_vram_mib: int | None = Field(
        None, gt=0, le=2**40, validation_alias="PER_GPU_VRAM_MIB", description="MiB of one GPU; wins over every node"
    )


class ServeSettings(SourceSettings):
    """Settings of `serve`."""

    listen_address: str = Field("0.0.0.0", description="address to listen on")
    listen_port: int = Field(names.VRAMD_PORT, ge=0, le=65535, description="gRPC port; 0 takes a free one")
    metrics_port: int = Field(
        names.VRAMD_METRICS_PORT,
        ge=0,
        le=65535,
        description="HTTP port of /metrics, /healthz and /readyz; 0 takes a free one",
    )


async def _serve(settings: ServeSettings) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    registry = CollectorRegistry()
    store = NodeStore(settings.per_gpu_vram_mib, time.monotonic)
    registry.register(metrics.StoreCollector(store, loop))
    seen = file_source.load(settings.nodes_file, store)
    server = Server(store, metrics.Calls(registry), settings.listen_address, settings.listen_port)
    http = metrics.serve(registry, store, settings.listen_address, settings.metrics_port)
    serving = loop.run_in_executor(None, http.serve_forever)
    tasks = [
        asyncio.create_task(stop.wait()),
        asyncio.create_task(file_source.follow(settings.nodes_file, store, seen)),
    ]
    try:
        await server.start()
        _log.info("listening", address=settings.listen_address, port=server.port, metrics_port=http.server_address[1])
        health = asyncio.create_task(server.follow_health())
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        health.cancel()
    finally:
        for task in tasks:
            task.cancel()
        await server.stop(STOP_GRACE_SECONDS)
        http.shutdown()
        http.server_close()
        await serving
    _log.info("stopped")
    for task in done:
        task.result()


def serve(settings: ServeSettings) -> int:
    """Answer over gRPC until SIGTERM."""
    asyncio.run(_serve(settings))
    return 0


def basis(settings: SourceSettings) -> int:
    """Print the basis for people: the figure on standard output, or 1 and the reason where it is unknown."""
    store = NodeStore(settings.per_gpu_vram_mib, time.monotonic)
    store.replace(file_source.read_nodes(settings.nodes_file))
    answer = store.answer(parse_constraints(Constraints()))
    if isinstance(answer, Unknown):
        print(f"unknown: {answer.reason}")
        return 1
    print(f"{answer.basis_mib} MiB ({'PER_GPU_VRAM_MIB' if answer.override else f'smallest of {answer.nodes} nodes'})")
    return 0


def main() -> int:
    """Entry point of `isolator-vramd`."""
    return settings.main(
        "isolator-vramd",
        "ISOLATOR_VRAMD_",
        "Tells the basis: the memory of the smallest GPU that a pod can land on.",
        [
            Command("serve", "Answer over gRPC until SIGTERM.", ServeSettings, serve),
            Command("basis", "Print the basis of a file of nodes.", SourceSettings, basis),
        ],
    )
