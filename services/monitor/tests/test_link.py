"""The reader and the server as two processes, and what each does when the other fails."""

import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from isolator_core.errors import SettingsError, UserError
from isolator_monitor import link
from isolator_monitor.link import LinkDown, RemoteNode
from isolator_monitor.node import NodeReading
from isolator_monitor.targets import Target

WAIT_SECONDS = 20.0
TARGET = Target("u", "main", (), None)
EMPTY = NodeReading(1.0, 1.0, 0.0, (), (), "", {}, {}, "")


class FixedNode:
    """Answers the number of targets as seconds."""

    def read(self, targets: tuple[Target, ...]) -> NodeReading:
        return msgspec.structs.replace(EMPTY, seconds=float(len(targets)))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s"


def read_soon(remote: RemoteNode, targets: tuple[Target, ...]) -> NodeReading:
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            return remote.read(targets)
        except LinkDown:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def start_reader(path: Path) -> None:
    threading.Thread(target=link.answer, args=(FixedNode(), path), daemon=True).start()


def test_reader_answers_and_finds_a_server_that_was_restarted(path: Path) -> None:
    start_reader(path)
    remote = RemoteNode(path, 5)
    assert read_soon(remote, (TARGET, TARGET)).seconds == 2
    assert remote.read(()).seconds == 0
    remote.close()
    again = RemoteNode(path, 5)
    assert read_soon(again, (TARGET,)).seconds == 1
    again.close()


def test_a_new_reader_takes_over(path: Path) -> None:
    remote = RemoteNode(path, 5)
    silent = socket.socket(socket.AF_UNIX)
    silent.connect(str(path))
    start_reader(path)
    assert read_soon(remote, (TARGET,)).seconds == 1
    silent.close()
    remote.close()


def test_without_a_reader_the_server_says_so(path: Path) -> None:
    remote = RemoteNode(path, 5)
    with pytest.raises(LinkDown, match="no reader has connected"):
        remote.read(())
    remote.close()


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (lambda peer: peer.sendall(struct.pack("!I", (64 << 20) + 1)), "at most"),
        (lambda peer: peer.sendall(struct.pack("!I", 3) + b"abc"), "not understood"),
        (lambda peer: peer.sendall(struct.pack("!I", 100) + b"abc"), "receiving failed"),
        (lambda peer: peer.shutdown(socket.SHUT_RDWR), "sending failed"),
        (lambda peer: peer.shutdown(socket.SHUT_WR), "closed"),
        (lambda _: None, "receiving failed"),
    ],
)
def test_a_reader_that_breaks_the_protocol_is_let_go(
    path: Path, reply: Callable[[socket.socket], object], words: str
) -> None:
    remote = RemoteNode(path, 0.3)
    peer = socket.socket(socket.AF_UNIX)
    peer.connect(str(path))
    deadline = time.monotonic() + WAIT_SECONDS
    reply(peer)
    while True:
        with pytest.raises(LinkDown) as caught:
            remote.read(())
        if "no reader" not in str(caught.value):
            break
        assert time.monotonic() < deadline
    assert words in str(caught.value)
    with pytest.raises(LinkDown, match="no reader"):
        remote.read(())
    peer.close()
    remote.close()


def test_a_socket_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot listen on --reader-socket"):
        RemoteNode(tmp_path / "none" / "s", 1)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="Address already in use"):
        RemoteNode(tmp_path / "file", 1)
    with pytest.raises(SettingsError, match="107 bytes"):
        link.answer(FixedNode(), tmp_path / ("x" * 120))
