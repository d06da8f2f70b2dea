"""What a probe and a scraper meet."""

import http.client
import socket
import threading
from collections.abc import Iterator

import pytest
import structlog

from isolator_core.errors import UserError
from isolator_core.http_server import Answer, make_server, text


def answer(path: str, accept: str) -> Answer:
    if path == "/readyz":
        return text(503, f"not yet, {accept}")
    if path == "/broken":
        raise RuntimeError("not foreseen")
    return text(200, path)


@pytest.fixture(params=["127.0.0.1", "::1"])
def address(request: pytest.FixtureRequest) -> Iterator[tuple[str, int]]:
    with make_server(request.param, 0, answer) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield request.param, server.server_address[1]
        server.shutdown()


def ask(address: tuple[str, int], method: str, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(*address, timeout=10)
    try:
        connection.request(method, path, headers={"Accept": "text/plain"})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def test_answers_by_path_without_query(address: tuple[str, int]) -> None:
    assert ask(address, "GET", "/metrics?x=1") == (200, b"/metrics\n")
    assert ask(address, "GET", "/readyz") == (503, b"not yet, text/plain\n")
    assert ask(address, "HEAD", "/readyz") == (503, b"")


def test_a_client_that_says_nothing_holds_up_nobody(address: tuple[str, int]) -> None:
    with socket.create_connection(address):
        assert ask(address, "GET", "/") == (200, b"/\n")


def test_a_fault_of_ours_is_an_answer_and_a_line_in_the_log(address: tuple[str, int]) -> None:
    with structlog.testing.capture_logs() as logs:
        status, body = ask(address, "GET", "/broken")
    assert (status, b"not foreseen" in body) == (500, False)
    (line,) = logs
    assert (line["event"], line["path"], line["exc_info"]) == ("answer_failed", "/broken", True)
    assert ask(address, "GET", "/") == (200, b"/\n")


def test_a_taken_port_is_one_sentence() -> None:
    with (
        make_server("127.0.0.1", 0, answer) as server,
        pytest.raises(UserError, match=r"cannot listen on 127\.0\.0\.1:\d+: Address already in use"),
    ):
        make_server("127.0.0.1", server.server_address[1], answer)
