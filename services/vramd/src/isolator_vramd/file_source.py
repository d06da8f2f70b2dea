"""Nodes from a file: a NodeList in YAML or JSON, looked at again when it changes."""

import asyncio
from pathlib import Path

import msgspec
import structlog
import yaml

from isolator_core.errors import SettingsError
from isolator_vramd.files import Identity, identity
from isolator_vramd.nodes import GpuNode, Node, NodeList, gpu_nodes
from isolator_vramd.store import NodeStore

POLL_SECONDS = 0.05
"""How often the file's identity is looked at: one stat, so that a change is seen well within 100 ms."""

_log = structlog.get_logger()


def load_yaml(content: bytes) -> object:
    """A YAML or JSON document as plain data. Raises ValueError with a sentence that says what is wrong and where."""
    try:
        return yaml.load(content, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        text = " ".join(str(error).replace(' in "<byte string>",', " at").split())
        raise ValueError(f"not valid YAML or JSON: {text}") from error


def decode_nodes(content: bytes) -> list[Node]:
    """The nodes of a NodeList, a List or one Node, in YAML or JSON.

    Raises ValueError with a sentence that names what is wrong and where.
    """
    raw = load_yaml(content)
    if not isinstance(raw, dict):
        raise ValueError("a Kubernetes NodeList is accepted, this is not a mapping")
    kind = raw.get("kind")
    if kind not in ("NodeList", "List", "Node"):
        raise ValueError(f"kind is {kind!r}; accepted are NodeList, List and Node")
    try:
        nodes = [msgspec.convert(raw, Node)] if kind == "Node" else msgspec.convert(raw, NodeList).items or []
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error
    seen = set()
    for position, node in enumerate(nodes):
        where = f"items[{position}]"
        if node.kind != "Node":
            raise ValueError(f"{where}.kind is {node.kind!r}; Node is accepted")
        if not node.metadata.name:
            raise ValueError(f"{where}.metadata.name is missing")
        if node.metadata.name in seen:
            raise ValueError(f"{where}.metadata.name is {node.metadata.name!r} a second time")
        seen.add(node.metadata.name)
    return nodes


def read_nodes(path: Path) -> list[GpuNode]:
    """The GPU nodes of a file. Raises SettingsError that names the file and what is wrong with it."""
    try:
        return gpu_nodes(decode_nodes(path.read_bytes()))
    except OSError as error:
        raise SettingsError(f"cannot read --nodes-file {path}: {error.strerror}") from error
    except ValueError as error:
        raise SettingsError(f"--nodes-file {path}: {error}") from error


def load(path: Path, store: NodeStore) -> Identity | None:
    """Read the file into the store and return what to `follow` from. Raises SettingsError if it cannot be read."""
    seen = identity(path)
    store.replace(read_nodes(path))
    return seen


async def follow(path: Path, store: NodeStore, seen: Identity | None) -> None:
    """Read the file into the store whenever it changes from what was `seen`.

    A wrong file is logged and the last valid nodes stay; they are not confirmed any more, so their age tells.
    """
    valid = True
    while True:
        await asyncio.sleep(POLL_SECONDS)
        now = identity(path)
        if now == seen:
            if valid:
                store.confirm()
            continue
        seen = now
        try:
            nodes = await asyncio.to_thread(read_nodes, path)
        except SettingsError as error:
            valid = False
            _log.error("nodes_file_refused", error=str(error), kept=f"{len(store.index)} GPU nodes read before")
            continue
        valid = True
        store.replace(nodes)
        _log.info("nodes_read", gpu_nodes=len(nodes))
