"""Two versions of a library to install, and the command as a person runs it."""

import contextlib
import http.client
import http.server
import json
import os
import queue
import re
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from isolator_core.settings import main
from isolator_libsync.cli import COMMANDS
from isolator_testing import tools
from isolator_testing.certificates import Authority

WAIT_SECONDS = 50
"""Ten times the 5 s within which the node is to be right again."""

PROGRAM = (sys.executable, "-m", "isolator_libsync")

SOURCE = """
#include <stdlib.h>
static const char version[] = "%s";
static const unsigned char body[%d] = {1};
void *answer(void) { return version[0] + body[0] ? malloc(1) : 0; }
"""


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """An old and a new library, of different sizes, each longer than a page."""
    compiler = tools.require("cc", package="gcc")
    built = []
    for version, size in (("old", 70_000), ("new", 90_000)):
        folder = tmp_path_factory.mktemp(version)
        source, library = folder / "library.c", folder / "libvgpu.so"
        source.write_text(SOURCE % (version, size))
        subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
        built.append(library)
    return built[0], built[1]


@pytest.fixture
def library(libraries: tuple[Path, Path]) -> Path:
    return libraries[1]


@pytest.fixture
def host_dir(tmp_path: Path) -> Path:
    return tmp_path / "node"


@dataclass(frozen=True)
class Ended:
    """What a command printed."""

    stdout: str
    stderr: str


@pytest.fixture
def libsync(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """Run a command in this process; `status` is the exit status that is expected."""

    def run(*arguments: object, status: int = 0) -> Ended:
        capsys.readouterr()
        returned = main("isolator-libsync", "ISOLATOR_LIBSYNC_", "", COMMANDS, list(map(str, arguments)))
        ended = Ended(*capsys.readouterr())
        assert returned == status, ended
        return ended

    return run


@pytest.fixture
def libsync_process() -> Callable[..., Ended]:
    """Run a command in a process of its own, `before` it another program that starts it."""

    def run(*arguments: object, status: int = 0, before: Sequence[object] = ()) -> Ended:
        command = [*map(str, before), *PROGRAM, *map(str, arguments)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_SECONDS, check=False)
        assert ended.returncode == status, ended.stdout + ended.stderr
        assert "Traceback" not in ended.stderr
        return Ended(ended.stdout, ended.stderr)

    return run


@pytest.fixture
def keep(host_dir: Path, library: Path) -> tuple[object, ...]:
    """The flags with which this user keeps `library` in `host_dir`."""
    return ("--host-dir", host_dir, "--library", library, "--owner", f"{os.geteuid()}:{os.getegid()}")


def error_line(ended: Ended) -> str:
    """The one line on standard error that is not a log line."""
    lines = [line for line in ended.stderr.splitlines() if not line.startswith("{")]
    assert len(lines) == 1, ended.stderr
    return lines[0].removeprefix("isolator-libsync: ")


@pytest.fixture(name="error_line")
def error_line_fixture() -> Callable[[Ended], str]:
    return error_line


def right(host_dir: Path, library: Path) -> bool:
    """Whether both files stand there whole, seen without a line of the code under test."""
    files = {"libvgpu.so": library.read_bytes(), "ld.so.preload": b"/usr/local/vgpu/libvgpu.so\n"}
    for name, content in files.items():
        path = host_dir / name
        if path.is_symlink() or not path.is_file() or path.read_bytes() != content:
            return False
        if path.stat().st_mode != (0o100755 if name == "libvgpu.so" else 0o100644):
            return False
        if (path.stat().st_uid, path.stat().st_gid) != (os.geteuid(), os.getegid()):
            return False
    return True


@pytest.fixture(name="right")
def right_fixture() -> Callable[[Path, Path], bool]:
    return right


def until(holds: Callable[[], bool], what: str) -> None:
    """Wait until something holds, and fail if it does not within a generous time."""
    end = time.monotonic() + WAIT_SECONDS
    while not holds():
        assert time.monotonic() < end, f"not within {WAIT_SECONDS} s: {what}"
        time.sleep(0.01)


@pytest.fixture(name="until")
def until_fixture() -> Callable[[Callable[[], bool], str], None]:
    return until


class Service:
    """A running `isolator-libsync run`."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.port = 0
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._lines.put(line)
        self._lines.put("")

    def read_line(self) -> str:
        """The next line of standard error. Fails once there are no more."""
        line = self._lines.get(timeout=WAIT_SECONDS)
        assert line, f"ended with {self.process.wait(WAIT_SECONDS)}"
        return line

    def end(self) -> None:
        """Kill it if it still runs."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join()
        assert self.process.stderr is not None
        self.process.stderr.close()

    def read_until(self, event: str) -> dict[str, Any]:
        """The next log line of this event."""
        while True:
            line = self.read_line()
            if line.startswith("{") and json.loads(line)["event"] == event:
                return json.loads(line)

    def get(self, path: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_SECONDS)
        with contextlib.closing(connection):
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()

    def metric(self, series: str) -> float:
        """The value of one series, named as in the exposition."""
        found = re.search(rf"^{re.escape(series)} (\S+)$", self.get("/metrics")[1], re.MULTILINE)
        assert found, series
        return float(found[1])

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(WAIT_SECONDS)


Start = Callable[..., Service]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start `run` with flags of one's own, listening on a free port; it is ended after the test."""
    services = []

    def begin(*arguments: object, before: Sequence[object] = ()) -> Service:
        command = [*before, *PROGRAM, "run", "--listen-address", "127.0.0.1", "--listen-port", "0", *arguments]
        process = subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, text=True)
        service = Service(process)
        services.append(service)
        service.port = service.read_until("listening")["port"]
        return service

    yield begin
    for service in services:
        service.end()


@dataclass
class ApiServer:
    """A TLS server that answers as an API server does for one node and its pods, and remembers what it was asked."""

    flags: tuple[object, ...]
    token: Path
    node: dict[str, Any]
    pods: list[dict[str, Any]]
    requests: list[tuple[str, str, str]]
    """Method, path and content type of each."""
    fail: tuple[int, dict[str, Any]] | None = None
    """Answer everything with this instead."""
    delay_seconds: float = 0


def merge(target: dict[str, Any], patch: dict[str, Any]) -> None:
    """JSON Merge Patch (RFC 7396)."""
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        elif isinstance(value, dict):
            merge(target.setdefault(key, {}), value)
        else:
            target[key] = value


def merge_conditions(node: dict[str, Any], patch: dict[str, Any]) -> None:
    """Strategic merge of a node's conditions, by their type."""
    conditions = {entry["type"]: entry for entry in node["status"]["conditions"]}
    for entry in patch["status"]["conditions"]:
        if entry.get("$patch") == "delete":
            conditions.pop(entry["type"], None)
        else:
            conditions[entry["type"]] = conditions.get(entry["type"], {}) | entry
    node["status"]["conditions"] = list(conditions.values())


@pytest.fixture
def api_server(tmp_path: Path) -> Iterator[ApiServer]:
    """A server of the tests for node `gpu-1`, with a certificate for 127.0.0.1 from a CA of its own."""
    authority, token = Authority(), tmp_path / "token"
    token.write_text("first-token\n")
    server = ApiServer(
        flags=(),
        token=token,
        node={"metadata": {"name": "gpu-1"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}},
        pods=[],
        requests=[],
    )

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            time.sleep(server.delay_seconds)
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            server.requests.append((self.command, self.path, self.headers["Content-Type"]))
            status, answer = server.fail or self.route(body)
            text = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def route(self, body: bytes) -> tuple[int, dict[str, Any]]:
            if self.headers["Authorization"] != f"Bearer {token.read_text().strip()}":
                return 401, {"kind": "Status", "message": "Unauthorized"}
            path, _, query = self.path.partition("?")
            match self.command, path:
                case "GET", "/api/v1/nodes/gpu-1":
                    return 200, server.node
                case "PATCH", "/api/v1/nodes/gpu-1":
                    merge(server.node, json.loads(body))
                    return 200, server.node
                case "PATCH", "/api/v1/nodes/gpu-1/status":
                    merge_conditions(server.node, json.loads(body))
                    return 200, server.node
                case "GET", "/api/v1/pods":
                    return 200, self.page({key: values[0] for key, values in parse_qs(query).items()})
            return 404, {"kind": "Status", "message": "the server could not find the requested resource"}

        def page(self, query: dict[str, str]) -> dict[str, Any]:
            name = query["fieldSelector"].removeprefix("spec.nodeName=")
            matching = [pod for pod in server.pods if pod["spec"].get("nodeName") == name]
            # Pages of two, whatever is asked for: the server may always give less.
            first = int(query.get("continue", "0"))
            following = {"continue": str(first + 2)} if first + 2 < len(matching) else {}
            return {"kind": "PodList", "metadata": following, "items": matching[first : first + 2]}

        do_GET = do_PATCH = answer  # noqa: N815, the names are http.server's

        def log_message(self, *_: object) -> None:
            pass

    class Server(http.server.ThreadingHTTPServer):
        block_on_close = False

        def handle_error(self, *_: object) -> None:
            """A client that does not trust us, or did not wait, is what some tests are about."""

    with Server(("127.0.0.1", 0), Handler) as listening:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue().write(tmp_path).load(context)
        listening.socket = context.wrap_socket(listening.socket, server_side=True)
        threading.Thread(target=listening.serve_forever, args=(0.01,), daemon=True).start()
        url = f"https://127.0.0.1:{listening.server_address[1]}"
        files = ("--api-token-file", token, "--api-ca-file", authority.write(tmp_path))
        server.flags = ("--api-server", url, *files, "--node-name", "gpu-1")
        yield server
        listening.shutdown()
