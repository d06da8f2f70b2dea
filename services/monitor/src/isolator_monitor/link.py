"""The sockets between the parts that open tenants' files and the part that serves.

The server listens on a Unix socket for each, the others connect: so they have no listener of any kind. The server sends
targets and the reader answers with one reading; it sends a plan and the steerer answers with a report. Each message is
a length of four bytes and MessagePack. All sides check types and sizes, and none waits for another without an end.
"""

import os
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec
import structlog

from isolator_core.errors import SettingsError, UserError
from isolator_monitor.node import Node, NodeReading
from isolator_monitor.plan import Plan, Report
from isolator_monitor.targets import Target

LARGEST_MESSAGE = 64 << 20
_LENGTH = struct.Struct("!I")
_RETRY_SECONDS = (0.1, 5.0)
_CONNECT_SECONDS = 5.0

_log = structlog.get_logger()

T = TypeVar("T")
Q = TypeVar("Q")


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


class _Remote:
    """Another process that answers. Listens; the one that connected last is asked."""

    def __init__(self, name: str, path: Path, patience_seconds: float) -> None:
        """Listen for the process of this name. Raises UserError if the socket cannot be made."""
        self._name = name
        self._patience = patience_seconds
        self._lock = threading.Lock()
        self._channel: _Channel | None = None
        self._connected: list[_Channel] = []
        self._listener = _listen(name, path)
        self._acceptor = threading.Thread(target=self._accept, daemon=True)
        self._acceptor.start()

    def ask(self, question: object, kind: type[T]) -> T:
        """Ask, and wait for an answer of that kind. Raises LinkDown."""
        channel = self._newest()
        if channel is None:
            raise LinkDown(f"no {self._name} has connected")
        try:
            channel.send(question)
            return channel.receive(kind, time.monotonic() + self._patience)
        except LinkDown:
            channel.close()
            with self._lock:
                self._channel = None
            raise

    def close(self) -> None:
        """Stop listening and let go of who is connected."""
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
            _log.info(f"{self._name}_connected")


class RemoteNode(_Remote):
    """The node as a reader in another process sees it."""

    def __init__(self, path: Path, patience_seconds: float) -> None:
        """Listen for the reader. Raises UserError if the socket cannot be made."""
        super().__init__("reader", path, patience_seconds)

    def read(self, targets: tuple[Target, ...]) -> NodeReading:
        """Ask for a reading. Raises LinkDown."""
        return self.ask(targets, NodeReading)


class RemoteSteerer(_Remote):
    """The steerer in another process."""

    def __init__(self, path: Path, patience_seconds: float) -> None:
        """Listen for the steerer. Raises UserError if the socket cannot be made."""
        super().__init__("steerer", path, patience_seconds)

    def adopt(self, plan: Plan) -> Report:
        """Hand over what holds from now on. Raises LinkDown."""
        return self.ask(plan, Report)


def _listen(name: str, path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        if path.exists() and stat.S_ISSOCK(path.stat().st_mode):
            path.unlink()
        listener.bind(str(path))
        # Who connects is another user without the right to override modes; these parts alone share the directory.
        path.chmod(0o666)
        listener.listen(4)
    except OSError as error:
        listener.close()
        raise UserError(f"cannot listen on --{name}-socket {path}: {error.strerror or error}") from error
    return listener


def answer(node: Node, path: Path) -> None:
    """Connect to the server and answer it with readings, for ever; after a loss, connect again."""
    check_path("reader", path)
    _answer(node.read, tuple[Target, ...], path)


def answer_plans(adopt: Callable[[Plan], Report], path: Path) -> None:
    """Connect to the server and take its plans, for ever; after a loss, connect again."""
    check_path("steerer", path)
    _answer(adopt, Plan, path)


def check_path(name: str, path: Path) -> None:
    """Raises SettingsError for a path that no socket can have."""
    if len(os.fsencode(path)) > 107:
        raise SettingsError(f"--{name}-socket {path}: at most 107 bytes are accepted")


def _answer(respond: Callable[[Q], object], kind: type[Q], path: Path) -> None:
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
                channel.send(respond(channel.receive(kind, None)))
        except (LinkDown, OSError) as error:
            if str(error) != said:
                said = str(error)
                _log.warning("server_lost", socket=str(path), error=said)
        finally:
            channel.close()
        time.sleep(wait)
        wait = min(wait * 2, _RETRY_SECONDS[1])
