"""Every way to take memory from the real driver: charged as NVML sees it, refused above the share, given back."""

import pynvml
import pytest
from tests.native.client import Client, Server
from tests.native.container import MIB, Container
from tests.native.gpu.conftest import SHARE_MIB

pytestmark = pytest.mark.gpu
SIZE = 256 * MIB
KINDS = {
    "linear": (f"take(2, {SIZE})", "free(2)"),
    "pitched": ("take_pitch(2, 1 << 20, 256)", "free(2)"),
    "managed": (f"take_managed(2, {SIZE}), touch(2)", "free(2)"),
    "stream-ordered": (f"take_ordered(2, {SIZE})", "free_ordered(2), wait()"),
    "pool": (f"make_pool(3, 0, True), take_from(2, {SIZE}, 3)", "free_ordered(2), wait(), trim_pool(3), end_pool(3)"),
    "virtual": (f"create(2, {SIZE}, 0), map_handle(3, 2, {SIZE})", "release(2), unmap(3)"),
    "array": ("take_array(2, 8192, 4096, 0, 0)", "free_array(2)"),
    "graph": (f"make_graph(2, [{SIZE}], True), launch_graph(2), wait()", "end_graph(2), wait(), trim_graphs(0)"),
    "context": ("make_context(2, 0), use(1)", "end_context(2), use(1)"),
}
TOO_MUCH = {
    "linear": "take(4, {})",
    "pitched": "take_pitch(4, 1 << 20, {} >> 20)",
    "managed": "take_managed(4, {})",
    "stream-ordered": "take_ordered(4, {})",
    "virtual": "create(4, {}, 0)",
}


def nvml_bytes(card: pynvml.c_nvmlDevice_t, pid: int) -> int:
    """What NVML books for a process."""
    return sum(
        process.usedGpuMemory or 0
        for process in pynvml.nvmlDeviceGetComputeRunningProcesses(card)
        if process.pid == pid
    )


def charged(container: Container, client: Client) -> int:
    client.run("info()")
    held = container.slot(client.pid)
    return held.memory[0].total if held else 0


@pytest.mark.parametrize("kind", KINDS)
def test_is_charged_as_the_driver_holds_it(
    card: pynvml.c_nvmlDevice_t, container: Container, client: Client, kind: str
) -> None:
    take, give = KINDS[kind]
    before, booked = charged(container, client), nvml_bytes(card, client.pid)
    answers = client.run(take)
    assert {answer for answer in (answers if isinstance(answers, list) else [answers]) if answer} == {"SUCCESS"}
    held, held_by_nvml = charged(container, client) - before, nvml_bytes(card, client.pid) - booked
    assert held > 0
    assert abs(held - held_by_nvml) <= 32 * MIB, f"charged {held}, NVML says {held_by_nvml}"
    client.run(give)
    assert abs(charged(container, client) - before) <= 4 * MIB


@pytest.mark.parametrize("kind", TOO_MUCH)
def test_is_refused_above_the_share(client: Client, kind: str) -> None:
    assert client.run(TOO_MUCH[kind].format(SHARE_MIB * MIB)) == "OUT_OF_MEMORY"
    free, total = client.run("info()")
    assert total == SHARE_MIB * MIB
    assert client.run(f"take(5, {free - 16 * MIB})") == "SUCCESS"


def test_processes_and_threads_end_where_they_began(container: Container) -> None:
    server = Server(container.environment())
    clients = [server.client() for _ in range(2)]
    try:
        for client in clients:
            assert client.run("start(), retain_primary(1, 0)") == ["SUCCESS"] * 2
            client.run("use(1)")
        before = [charged(container, client) for client in clients]
        for number, client in enumerate(clients):
            client.socket.settimeout(None)
            client.send(f"churn(2, 1000, {100 * number})")
        for client in clients:
            client.receive("churn")
            client.run("use(1)")
            assert client.run("take(1, 1 << 40)") == "OUT_OF_MEMORY"
        after = [charged(container, client) for client in clients]
        assert all(abs(then - now) <= 32 * MIB for then, now in zip(before, after, strict=True)), (before, after)
    finally:
        for client in clients:
            client.kill()
        server.close()


def test_what_a_killed_process_held_is_free_again(container: Container) -> None:
    server = Server(container.environment())
    try:
        for _ in range(3):
            client = server.client()
            assert client.run("start(), retain_primary(1, 0)") == ["SUCCESS"] * 2
            client.run("use(1)")
            assert client.run("take(2, 1 << 30)") == "SUCCESS"
            client.kill()
    finally:
        server.close()
