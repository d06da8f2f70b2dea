"""CUDA programs under remote control that start in a moment: one process imports NVIDIA's bindings and forks them.

Run as a program it is that process: each message on its standard input, a socket, brings the socket of a new client. To
a client each message is a JSON list [thread, source]; the source runs in that thread and is answered in JSON.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

ANSWER_SECONDS = 120.0


class Client:
    """One forked process, not yet started with CUDA."""

    def __init__(self, server: "Server") -> None:
        self.socket, theirs = socket.socketpair()
        self.socket.settimeout(ANSWER_SECONDS)
        with theirs:
            socket.send_fds(server.socket, [b"."], [theirs.fileno()])
        self.lines = self.socket.makefile("r")
        self.pid = int(self.lines.readline())
        self.descriptor = os.pidfd_open(self.pid)

    def run(self, source: str, thread: int = 0) -> Any:
        """Value of an expression, or None after statements, run in the thread of that number."""
        self.send(source, thread)
        return self.receive(source)

    def send(self, source: str, thread: int = 0) -> None:
        """Start what `receive` waits for."""
        self.socket.sendall(json.dumps([thread, source]).encode() + b"\n")

    def receive(self, source: str) -> Any:
        answer = self.lines.readline()
        if not answer:
            raise AssertionError(f"client {self.pid} ended at {source!r}")
        told = json.loads(answer)
        if "error" in told:
            raise AssertionError(told["error"])
        return told["value"]

    def kill(self) -> None:
        """End it at once and wait until it is gone."""
        signal.pidfd_send_signal(self.descriptor, signal.SIGKILL)
        self.wait()

    def wait(self) -> None:
        """Wait for its end."""
        ready, _, _ = select.select([self.descriptor], [], [], ANSWER_SECONDS)
        assert ready, f"client {self.pid} does not end"
        self.close()

    def close(self) -> None:
        """Leave the process alone."""
        os.close(self.descriptor)
        self.lines.close()
        self.socket.close()

    def execute(self, *command: str) -> None:
        """Have it execute another program, and wait until it has."""
        self.socket.sendall(json.dumps([0, f"os.execvp({command[0]!r}, {list(command)})"]).encode() + b"\n")
        answer = self.lines.readline()
        assert answer == "", answer


class Server:
    """The process that forks clients, in an environment."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.socket, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, str(Path(__file__)), str(Path(__file__).parents[2])],
                stdin=theirs.fileno(),
                env=environment,
            )

    def client(self) -> Client:
        return Client(self)

    def close(self) -> None:
        self.socket.close()
        self.process.wait(timeout=60)


def serve(root: str) -> None:
    """The server's side: fork a client for each socket."""
    sys.path.insert(0, root)
    import tests.native.operations  # noqa: F401 - once, for all clients

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for clients
    with socket.socket(fileno=os.dup(0)) as commands:
        while True:
            message, descriptors, _, _ = socket.recv_fds(commands, 1, 1)
            if not message:
                return
            os.set_inheritable(descriptors[0], False)
            if os.fork() == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                commands.close()
                obey(socket.socket(fileno=descriptors[0]))
                os._exit(0)
            os.close(descriptors[0])


def obey(commands: socket.socket) -> None:
    """The client's side."""
    from concurrent.futures import ThreadPoolExecutor

    from tests.fakegpu.client import evaluate, plain
    from tests.native import operations

    names = vars(operations)
    threads: dict[int, ThreadPoolExecutor] = {}
    commands.sendall(f"{os.getpid()}\n".encode())
    for line in commands.makefile("r"):
        thread, source = json.loads(line)
        pool = threads.setdefault(thread, ThreadPoolExecutor(1))
        try:
            answer = {"value": plain(pool.submit(evaluate, source, names).result())}
        except Exception as error:
            answer = {"error": f"{source!r}: {error!r}"}
        commands.sendall(json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    serve(sys.argv[1])
