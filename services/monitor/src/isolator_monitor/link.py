"""The socket between the part that reads tenants' files and the part that serves.

The server listens on a Unix socket, the reader connects: so the reader has no listener of any kind. The server sends
targets, the reader answers with one reading; each message is a length of four bytes and MessagePack. Both sides check
types and sizes, and neither waits for the other without an end.
"""

import os
import socket
import stat
import struct
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec
import structlog

from isolator_core.errors import SettingsError, UserError
from isolator_monitor.node import Node, NodeReading
from isolator_monitor.targets import Target

LARGEST_MESSAGE = 64 << 20
_LENGTH = struct.Struct("!I")
_RETRY_SECONDS = (0.1, 5.0)
_CONNECT_SECONDS = 5.0

_log = structlog.get_logger()

T = TypeVar("T")


class LinkDown(Exception):
    """The other side is not there, or did not keep to the protocol. The text says what happened."""


class _Channel:
    """Messages over one connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def send(self, message: object) -> None:
        data = msgspec.msgpack.encode(message)
        try:
            self._connection.sendall(_LENGTH.pack(len(data)) + data)
        except OSError as error:
            raise LinkDown(f"sending failed: {error}") from error

    def receive(self, kind: type[T], deadline: float | None) -> T:
        """The next message; `deadline` is a monotonic time for the whole of it."""
        (length,) = _LENGTH.unpack(self._take(_LENGTH.size, deadline))
        if length > LARGEST_MESSAGE:
            raise LinkDown(f"a message of {length} bytes; at most {LARGEST_MESSAGE} are accepted")
        try:
            return msgspec.msgpack.decode(self._take(length, deadline), type=kind)
        except msgspec.DecodeError as error:
            raise LinkDown(f"a message that is not understood: {error}") from error

    def interrupt(self) -> None:
        """Make whoever waits here fail at once; for other threads than the one that uses the channel."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._connection.close()

    def _take(self, size: int, deadline: float | None) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            try:
                self._connection.settimeout(None if deadline is None else max(deadline - time.monotonic(), 0.001))
                part = self._connection.recv(min(size - len(parts), 1 << 20))
            except OSError as error:
                raise LinkDown(f"receiving failed: {error}") from error
            if not part:
                raise LinkDown("the other side closed the connection")
            parts += part
        return bytes(parts)


class RemoteNode:
    """The node as a reader in another process sees it. Listens; the reader that connected last is asked."""

    def __init__(self, path: Path, patience_seconds: float) -> None:
        """Listen. Raises UserError if the socket cannot be made."""
        self._patience = patience_seconds
        self._lock = threading.Lock()
        self._channel: _Channel | None = None
        self._connected: list[_Channel] = []
        self._listener = _listen(path)
        self._acceptor = threading.Thread(target=self._accept, daemon=True)
        self._acceptor.start()

    def read(self, targets: tuple[Target, ...]) -> NodeReading:
        """Ask for a reading. Raises LinkDown."""
        channel = self._newest()
        if channel is None:
            raise LinkDown("no reader has connected")
        try:
            channel.send(targets)
            return channel.receive(NodeReading, time.monotonic() + self._patience)
        except LinkDown:
            channel.close()
            with self._lock:
                self._channel = None
            raise

    def close(self) -> None:
        """Stop listening and let go of the reader."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._acceptor.join()
        self._listener.close()
        channel = self._newest()
        if channel:
            channel.close()

    def _newest(self) -> _Channel | None:
        with self._lock:
            for channel in self._connected:
                if self._channel:
                    self._channel.close()
                self._channel = channel
            self._connected.clear()
            return self._channel

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            connection.settimeout(self._patience)
            with self._lock:
                self._connected.append(_Channel(connection))
                if self._channel:
                    self._channel.interrupt()
            _log.info("reader_connected")


def _listen(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        if path.exists() and stat.S_ISSOCK(path.stat().st_mode):
            path.unlink()
        listener.bind(str(path))
        # The reader is another user without the right to override modes; the directory is shared by the two alone.
        path.chmod(0o666)
        listener.listen(4)
    except OSError as error:
        listener.close()
        raise UserError(f"cannot listen on --reader-socket {path}: {error.strerror or error}") from error
    return listener


def answer(node: Node, path: Path) -> None:
    """Connect to the server and answer it, for ever; after a loss, connect again."""
    if len(os.fsencode(path)) > 107:
        raise SettingsError(f"--reader-socket {path}: at most 107 bytes are accepted")
    wait, said = _RETRY_SECONDS[0], ""
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        channel = _Channel(connection)
        try:
            connection.settimeout(_CONNECT_SECONDS)
            connection.connect(str(path))
            _log.info("server_connected", socket=str(path))
            wait, said = _RETRY_SECONDS[0], ""
            while True:
                channel.send(node.read(channel.receive(tuple[Target, ...], None)))
        except (LinkDown, OSError) as error:
            if str(error) != said:
                said = str(error)
                _log.warning("server_lost", socket=str(path), error=said)
        finally:
            channel.close()
        time.sleep(wait)
        wait = min(wait * 2, _RETRY_SECONDS[1])
