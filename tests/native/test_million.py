"""Many allocations of every kind, in threads of several processes around a limit, end where they began."""

import pytest
from tests.native.client import Server
from tests.native.container import MIB, Container

PROCESSES, THREADS = 3, 4
CONTEXT = 100 * MIB


def churn(container: Container, allocations: int) -> int:
    """Run them in small shares, so that many are refused; how many were."""
    container.limit(memory="2000m", devices="2")
    server = Server(container.environment())
    clients = [server.client() for _ in range(PROCESSES)]
    each = -(-allocations // (PROCESSES * THREADS))
    try:
        for client in clients:
            assert client.run("start(), retain_primary(1, 0), retain_primary(2, 1)") == ["SUCCESS"] * 3
            client.socket.settimeout(None)
        calls = [f"churn({THREADS}, {each}, {1000 * number})" for number in range(PROCESSES)]
        for client, call in zip(clients, calls, strict=True):
            client.send(call)
        granted, refused = zip(
            *[client.receive(call) for client, call in zip(clients, calls, strict=True)], strict=True
        )
        assert sum(granted) >= allocations
        for device in range(2):
            for client in clients:
                client.run(f"use({device + 1})")
                # The others see what its pools have given back at the last synchronisation once it has asked.
                client.run("info()")
            for client in clients:
                assert client.run("info()") == [(2000 - 100 * PROCESSES) * MIB, 2000 * MIB]
                held = container.slot(client.pid)
                assert held is not None
                assert (held.memory[device].context, held.memory[device].buffer) == (CONTEXT, 0)
            books = container.machine.books(device)["processes"]
            assert [entry["bytes"] for entry in books] == [CONTEXT] * PROCESSES
            assert container.total(device) == PROCESSES * CONTEXT
        return sum(refused)
    finally:
        for client in clients:
            client.kill()
        server.close()


def test_thirty_thousand_allocations_end_where_they_began(container: Container) -> None:
    assert churn(container, 30_000) > 0


@pytest.mark.slow
def test_a_million_allocations_end_where_they_began(container: Container) -> None:
    assert churn(container, 1_000_000) > 0
