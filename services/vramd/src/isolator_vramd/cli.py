"""The program `isolator-vramd`: its commands and settings."""

import asyncio
import signal
from pathlib import Path

import structlog
from pydantic import Field

from isolator_core import names, settings
from isolator_core.settings import Command, Settings
from isolator_vramd import file_source
from isolator_vramd.affinity import Constraints, compile_constraints
from isolator_vramd.basis import Unknown, basis_for
from isolator_vramd.nodes import GpuNode
from isolator_vramd.server import Server, State

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


async def _serve(settings: ServeSettings) -> None:
    seen = file_source.identity(settings.nodes_file)
    state = State(file_source.read_nodes(settings.nodes_file), settings.per_gpu_vram_mib)

    def changed(nodes: dict[str, GpuNode]) -> None:
        state.nodes = nodes
        _log.info("nodes_changed", gpu_nodes=len(nodes))

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    server = Server(state, settings.listen_address, settings.listen_port)
    await server.start()
    _log.info("listening", address=settings.listen_address, port=server.port, gpu_nodes=len(state.nodes))
    watching = asyncio.create_task(file_source.watch(settings.nodes_file, seen, changed))
    stopping = asyncio.create_task(stop.wait())
    done, _ = await asyncio.wait((watching, stopping), return_when=asyncio.FIRST_COMPLETED)
    watching.cancel()
    stopping.cancel()
    await server.stop(STOP_GRACE_SECONDS)
    _log.info("stopped")
    if watching in done:
        watching.result()


def serve(settings: ServeSettings) -> int:
    """Answer over gRPC until SIGTERM."""
    asyncio.run(_serve(settings))
    return 0


def basis(settings: SourceSettings) -> int:
    """Print the basis for people: the figure on standard output, or 1 and the reason where it is unknown."""
    nodes = file_source.read_nodes(settings.nodes_file)
    answer = basis_for(nodes, settings.per_gpu_vram_mib, compile_constraints(Constraints()))
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
