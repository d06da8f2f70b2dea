"""The program `isolator-vramd`: its commands and settings."""

import asyncio
import signal
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog
from prometheus_client import CollectorRegistry
from pydantic import Field

from isolator_core import names, settings
from isolator_core.errors import SettingsError
from isolator_core.settings import Command, Settings
from isolator_vramd import file_source, metrics, tls
from isolator_vramd.affinity import Constraints, Term, parse_constraints
from isolator_vramd.basis import Answer, Unknown
from isolator_vramd.memory import Memory
from isolator_vramd.selectors import constraints_of_pod, parse_selector
from isolator_vramd.server import Server
from isolator_vramd.store import NodeStore

if TYPE_CHECKING:
    from kubernetes.client import Configuration

STOP_GRACE_SECONDS = 5.0
LOG_SECONDS = 1.0

_log = structlog.get_logger()


class SourceSettings(Settings):
    """Where the nodes come from."""

    nodes_file: Path | None = Field(
        None, description="a Kubernetes NodeList in YAML or JSON in place of a cluster; `serve` follows its changes"
    )
    kubeconfig: Path | None = Field(
        None,
        description="kubeconfig of the cluster; without it and without --nodes-file, the cluster that this runs in",
    )
    kube_context: str | None = Field(None, description="context of the kubeconfig; default its current one")
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
    tls_cert_file: Path | None = Field(None, description="certificate chain (PEM); without it gRPC is not encrypted")
    tls_key_file: Path | None = Field(None, description="private key of the certificate (PEM)")
    tls_client_ca_file: Path | None = Field(
        None, description="authority (PEM) that signs clients' certificates; with it clients without one are refused"
    )


class BasisSettings(SourceSettings):
    """Settings of `basis`."""

    selector: str | None = Field(None, description="nodes by label, as kubectl takes it: pool=a100,zone in (a,b),!spot")
    node_name: str | None = Field(None, description="only this node")
    pod: Path | None = Field(None, description="manifest of a pod; its node constraints count")


def _check_source(settings: SourceSettings) -> None:
    if settings.nodes_file and settings.kubeconfig:
        raise SettingsError("--nodes-file and --kubeconfig are both given: one source is accepted")
    if settings.kube_context and not settings.kubeconfig:
        raise SettingsError("--kube-context is given without --kubeconfig")


def _configuration(settings: SourceSettings) -> "Configuration":
    # The Kubernetes client takes most of a second to import, which a nodes file need not wait for.
    from isolator_core import cluster_api

    otherwise = "--kubeconfig (ISOLATOR_VRAMD_KUBECONFIG) or --nodes-file (ISOLATOR_VRAMD_NODES_FILE)"
    return cluster_api.load_configuration(settings.kubeconfig, settings.kube_context, otherwise=otherwise)


def _tls_files(settings: ServeSettings) -> tls.TlsFiles | None:
    if settings.tls_cert_file and settings.tls_key_file:
        return tls.TlsFiles(settings.tls_cert_file, settings.tls_key_file, settings.tls_client_ca_file)
    if settings.tls_cert_file or settings.tls_key_file or settings.tls_client_ca_file:
        raise SettingsError("--tls-cert-file and --tls-key-file go together, --tls-client-ca-file needs both")
    return None


def _follow(settings: ServeSettings, store: NodeStore, registry: CollectorRegistry) -> Coroutine[Any, Any, None]:
    if settings.nodes_file is not None:
        seen = file_source.load(settings.nodes_file, store)
        return file_source.follow(settings.nodes_file, store, seen)
    from isolator_vramd import cluster

    return cluster.follow(_configuration(settings), store, metrics.SourceMetrics(registry))


async def _serve(settings: ServeSettings) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    _check_source(settings)
    files = _tls_files(settings)
    credentials = None if files is None else tls.credentials(files)
    registry = CollectorRegistry()
    store = NodeStore(settings.per_gpu_vram_mib, time.monotonic)
    registry.register(metrics.StoreCollector(store, loop))
    server = Server(store, metrics.Calls(registry), settings.listen_address, settings.listen_port, credentials)
    http = metrics.serve(registry, store, settings.listen_address, settings.metrics_port)
    following = asyncio.ensure_future(_follow(settings, store, registry))
    stopping = asyncio.ensure_future(stop.wait())
    serving = loop.run_in_executor(None, http.serve_forever)
    await server.start()
    telling = asyncio.ensure_future(_tell(server, store))
    _log.info(
        "listening",
        address=settings.listen_address,
        port=server.port,
        metrics_port=http.server_address[1],
        gpu_nodes=len(store.index),
        tls="off" if files is None else "mutual" if files.client_ca else "server",
    )
    done, _ = await asyncio.wait((following, telling, stopping), return_when=asyncio.FIRST_COMPLETED)
    await server.stop(STOP_GRACE_SECONDS)
    http.shutdown()
    http.server_close()
    await serving
    _log.info("stopped")
    for task in (following, telling, stopping):
        task.cancel()
    for ended in done - {stopping}:
        # Following and telling end by an error of this program only.
        ended.result()


async def _tell(server: Server, store: NodeStore) -> None:
    """Tell the health service and the log how things stand, until cancelled."""
    async with asyncio.TaskGroup() as group:
        group.create_task(server.follow_health())
        group.create_task(_log_basis(store))


async def _log_basis(store: NodeStore) -> None:
    """Say what the basis of the cluster is whenever it changes, at most once in `LOG_SECONDS`."""
    last: object = None
    while True:
        version = store.version
        if store.ready:
            answer = store.answer(parse_constraints(Constraints()))
            silent = sorted(node.name for node in store.index.nodes(store.index.no_memory))
            now = (answer.cause if isinstance(answer, Unknown) else answer.basis_mib, silent)
            if now != last:
                last = now
                _log_answer(answer, len(store.index), silent)
        await store.changed_since(version)
        await asyncio.sleep(LOG_SECONDS)


def _log_answer(answer: Answer, gpu_nodes: int, silent: list[str]) -> None:
    fields: dict[str, object] = {"gpu_nodes": gpu_nodes}
    if silent:
        fields |= {"nodes_without_memory": len(silent), "for_example": silent[0]}
    if isinstance(answer, Unknown):
        _log.warning("basis_unknown", reason=answer.reason, **fields)
    else:
        _log.info("basis", basis_mib=answer.basis_mib, heterogeneous=answer.heterogeneous, **fields)


def serve(settings: ServeSettings) -> int:
    """Answer over gRPC until SIGTERM."""
    asyncio.run(_serve(settings))
    return 0


def _constraints(settings: BasisSettings) -> Constraints:
    if sum(map(bool, (settings.selector, settings.node_name, settings.pod))) > 1:
        raise SettingsError("--selector, --node-name and --pod: one of them is accepted")
    if settings.pod is not None:
        try:
            return constraints_of_pod(settings.pod.read_bytes())
        except OSError as error:
            raise SettingsError(f"cannot read --pod {settings.pod}: {error.strerror}") from error
        except ValueError as error:
            raise SettingsError(f"--pod {settings.pod}: {error}") from error
    try:
        requirements = parse_selector(settings.selector or "")
    except ValueError as error:
        raise SettingsError(f"--selector: {error}") from error
    terms = (Term(match_expressions=requirements),) if requirements else None
    return Constraints(terms=terms, node_name=settings.node_name or "")


def _read_once(settings: BasisSettings, store: NodeStore) -> str:
    """Read the nodes and say where from."""
    if settings.nodes_file is not None:
        file_source.load(settings.nodes_file, store)
        return str(settings.nodes_file)
    from isolator_vramd import cluster

    configuration = _configuration(settings)
    cluster.read(configuration, store)
    return str(configuration.host)


def _describe(answer: Answer, source: str, store: NodeStore, eligible: int) -> list[tuple[str, str]]:
    if isinstance(answer, Unknown):
        lines = [("basis", f"unknown: {answer.reason}")]
    elif answer.override:
        return [("basis", f"{answer.basis_mib} MiB"), ("source", "PER_GPU_VRAM_MIB")]
    else:
        lines = [("basis", f"{answer.basis_mib} MiB"), ("nodes", f"{answer.nodes} of {len(store.index)} GPU nodes")]
        lines += [("", f"{count} × {mib} MiB") for mib, count in answer.distribution]
        lines.append(("heterogeneous", "yes" if answer.heterogeneous else "no"))
    silent = [node for node in store.index.nodes(eligible) if not isinstance(node.memory, Memory)]
    for position, node in enumerate(sorted(silent, key=lambda node: node.name)):
        assert not isinstance(node.memory, Memory)
        lines.append(("not counted" if position == 0 else "", f"{node.name}: {node.memory.reason}"))
    return [*lines, ("source", source)]


def basis(settings: BasisSettings) -> int:
    """Print the answer for people. Returns 1 where the basis is unknown."""
    _check_source(settings)
    constraints = parse_constraints(_constraints(settings))
    store = NodeStore(settings.per_gpu_vram_mib, time.monotonic)
    source = _read_once(settings, store)
    answer = store.answer(constraints)
    for name, text in _describe(answer, source, store, store.index.eligible(constraints)):
        print(f"{name:<14}{text}")
    return 1 if isinstance(answer, Unknown) else 0


def main() -> int:
    """Entry point of `isolator-vramd`."""
    return settings.main(
        "isolator-vramd",
        "ISOLATOR_VRAMD_",
        "Tells the basis: the memory of the smallest GPU that a pod can land on.",
        [
            Command("serve", "Answer over gRPC until SIGTERM.", ServeSettings, serve),
            Command("basis", "Print the basis, for all nodes or those that a pod can land on.", BasisSettings, basis),
        ],
    )
