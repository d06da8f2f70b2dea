"""Where a control plane listens: the machine's loopback, or a network namespace of its own.

The API server refuses endpoints in 127.0.0.0/8, so whoever wants it to call a webhook through a Service needs another
address. A namespace joined to this one by a veth pair gives one that leaves no trace on the machine and carries no
traffic of anyone else. Addresses come from 198.18.0.0/15, which RFC 2544 sets aside for tests.
"""

import ipaddress
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

RANGE = ipaddress.IPv4Network("198.18.0.0/15")
BLOCK_PREFIX = 28


@dataclass(frozen=True)
class Network:
    """An address to listen on, the command prefix that enters its namespace, and further addresses of it for pods."""

    address: str
    prefix: tuple[str, ...] = ()
    pod_addresses: tuple[str, ...] = ()


LOOPBACK = Network("127.0.0.1")


def _ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout


def _try_block(block: ipaddress.IPv4Network, name: str) -> bool:
    """Make the veth pair that claims a block; False where another control plane of this machine has it."""
    link = f"kri{int(block.network_address) & 0x1FFFF:x}"
    made = subprocess.run(
        ["ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", name],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if made.returncode != 0:
        if "File exists" in made.stderr:
            return False
        raise OSError(f"cannot make a veth pair: {made.stderr.strip()}")
    outside, *inside = [str(address) for address in block.hosts()]
    _ip("address", "add", f"{outside}/{BLOCK_PREFIX}", "dev", link)
    _ip("link", "set", link, "up")
    for address in inside:
        _ip("-n", name, "address", "add", f"{address}/{BLOCK_PREFIX}", "dev", "eth0")
    _ip("-n", name, "link", "set", "eth0", "up")
    _ip("-n", name, "link", "set", "lo", "up")
    return True


@contextmanager
def namespace(name: str) -> Iterator[Network]:
    """A network namespace with an address for the node and eleven more for pods. Needs root. Raises OSError."""
    _ip("netns", "add", name)
    try:
        for block in RANGE.subnets(new_prefix=BLOCK_PREFIX):
            if _try_block(block, name):
                break
        else:
            raise OSError(f"no free block of addresses is left in {RANGE}")
        _outside, address, *pods = [str(host) for host in block.hosts()]
        yield Network(address, ("nsenter", f"--net=/run/netns/{name}"), tuple(pods))
    finally:
        # Removing the namespace removes both ends of the pair, once no process is left in it.
        _ip("netns", "delete", name)


def free_port(network: Network) -> int:
    """A TCP port that nothing listens on now, in the namespace of `network`."""
    program = "import socket; s = socket.socket(); s.bind(('', 0)); print(s.getsockname()[1])"
    return int(subprocess.check_output([*network.prefix, "python3", "-c", program], text=True))


def wait_for_port(address: str, port: int, seconds: float) -> None:
    """Return once something accepts at address:port. Raises TimeoutError."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            with socket.create_connection((address, port), timeout=1):
                return
        except OSError:
            time.sleep(0.1)
    raise TimeoutError(f"nothing accepts at {address}:{port} after {seconds:.0f} s")
