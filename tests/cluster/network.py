"""Where a control plane listens: the machine's loopback, or a network namespace of its own.

The API server refuses endpoints in 127.0.0.0/8, so whoever wants it to call a webhook through a Service needs another
address. A namespace joined to this one by a veth pair gives one that leaves no trace on the machine and carries no
traffic of anyone else. Addresses are of 198.18.0.0/15, which RFC 2544 sets aside for tests.

Whoever makes a namespace holds a lock on it. The kernel takes the lock back when its holder ends, so the next run finds
what a killed one left, and removes it.
"""

import ctypes
import ipaddress
import os
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import waiting

NAMESPACES = Path("/run/netns")
LOCK = Path("/run/lock/kri-network-namespaces")
"""Not the directory of namespaces: `ip netns add` itself waits for a lock on that."""

PREFIX = "kri-"
"""Names of namespaces that a later run may remove once nobody holds them begin so."""

RANGE = ipaddress.IPv4Network("198.18.0.0/16")
CLONE_NEWNET = 0x40000000
IP_SECONDS = 60

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Network:
    """An address to listen on, and the network namespace it is in (empty for the machine's own)."""

    address: str
    namespace: str = ""

    @property
    def prefix(self) -> tuple[str, ...]:
        """The command that runs another one in the namespace."""
        return ("nsenter", f"--net={_path(self.namespace)}") if self.namespace else ()

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Have the calling thread, and what it starts, in the namespace for the time of a block. Needs root."""
        if not self.namespace:
            yield
            return
        with Path("/proc/thread-self/ns/net").open() as before, _path(self.namespace).open() as inside:
            _set_namespace(inside.fileno())
            try:
                yield
            finally:
                _set_namespace(before.fileno())


LOOPBACK = Network("127.0.0.1")


def _path(namespace: str) -> Path:
    return NAMESPACES / namespace


def _set_namespace(descriptor: int) -> None:
    if _libc.setns(descriptor, CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"setns: {os.strerror(number)}")


def ip(*arguments: str) -> str:
    """Run iproute2's `ip`. Raises OSError with what it said, or that it did not end."""
    try:
        done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False, timeout=IP_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise TimeoutError(f"ip {' '.join(arguments)} did not end within {IP_SECONDS} s") from error
    if done.returncode != 0:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def _join(block: ipaddress.IPv4Network, name: str) -> Network | None:
    """Join a namespace to this one by a veth pair; None where another control plane of this machine has the block."""
    link = f"kri{int(block.network_address) & 0x1FFFF:x}"
    outside, inside = block.hosts()
    try:
        ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", name)
    except OSError as error:
        if "File exists" in str(error):
            return None
        raise
    ip("address", "add", f"{outside}/{block.prefixlen}", "dev", link)
    ip("link", "set", link, "up")
    ip("-n", name, "address", "add", f"{inside}/{block.prefixlen}", "dev", "eth0")
    ip("-n", name, "link", "set", "eth0", "up")
    ip("-n", name, "link", "set", "lo", "up")
    return Network(str(inside), name)


def of_pod(node: Network, number: int) -> str:
    """Name of another namespace that belongs to a control plane's, and is removed with it when a run was killed."""
    return f"{node.namespace}.{number}"


def _remove_left() -> None:
    """Remove the namespaces of runs that have ended without doing so themselves."""
    names = sorted(path.name for path in NAMESPACES.glob(f"{PREFIX}*"))
    for name in [name for name in names if "." not in name]:
        descriptor = waiting.try_lock(_path(name))
        if descriptor is None:
            continue
        os.close(descriptor)
        # Its own last, by which a sweep that is cut short is found again.
        for left in [*(other for other in names if other.startswith(f"{name}.")), name]:
            waiting.say(f"removing the network namespace {left}, which a run left that was killed")
            ip("netns", "delete", left)


def _one_at_a_time() -> AbstractContextManager[None]:
    """Between the making of a namespace and its lock, nobody may take it for left behind; nor half removed."""
    LOCK.parent.mkdir(parents=True, exist_ok=True)
    LOCK.touch()
    return waiting.alone(LOCK, "another run that makes or removes a network namespace", 2 * IP_SECONDS)


@contextmanager
def _made(name: str) -> Iterator[None]:
    """A new namespace, held for the time of a block."""
    with _one_at_a_time():
        _remove_left()
        ip("netns", "add", name)
        descriptor = waiting.try_lock(_path(name))
    try:
        yield
    finally:
        with _one_at_a_time():
            # Removing the namespace removes both ends of the pair, once no process is left in it.
            ip("netns", "delete", name)
        if descriptor is not None:
            os.close(descriptor)


@contextmanager
def namespace(name: str) -> Iterator[Network]:
    """A network namespace that this one can reach, for the time of a block. Needs root. Raises OSError."""
    with _made(name):
        for block in RANGE.subnets(new_prefix=30):
            joined = _join(block, name)
            if joined:
                yield joined
                return
        raise OSError(f"no free block of addresses is left in {RANGE}")


def free_port(network: Network) -> int:
    """A TCP port that nothing listens on now, in the namespace of `network`."""
    program = "import socket; s = socket.socket(); s.bind(('', 0)); print(s.getsockname()[1])"
    return int(subprocess.check_output([*network.prefix, "python3", "-c", program], text=True, timeout=IP_SECONDS))
