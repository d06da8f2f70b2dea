"""The nodes, or other objects, of an API server over real HTTP, with the faults that one has: for tests and benchmarks.

Lists in pages of one consistent moment, watches with bookmarks, 410 for what was compacted; connections that are
refused, cut, held or answered with an error on demand.
"""

import contextlib
import json
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

Object = dict[str, Any]


@dataclass(frozen=True)
class Request:
    """What a client asked: its query and headers."""

    query: dict[str, str]
    authorization: str

    @property
    def watch(self) -> bool:
        return self.query.get("watch") == "true"


@dataclass(frozen=True)
class Fault:
    """An answer instead of the right one. `cut_after` bytes of a body are sent, then the connection is closed."""

    status: int = 500
    message: str = "fault"
    retry_after: str = ""
    cut_after: int | None = None
    body: bytes | None = None


@dataclass
class NodeApi:
    """The server. `put`, `delete` and `bookmark` change what clients see; the rest makes it fail."""

    bookmark_seconds: float = 60.0
    requests: list[Request] = field(default_factory=list)
    port: int = 0
    path: str = "/api/v1/nodes"
    posted: list[tuple[str, Object]] = field(default_factory=list)
    """Path and body of every object that a client created; a second of the same name there is answered with 409."""

    def __post_init__(self) -> None:
        self._version = 1000
        self._floor = 0
        # As JSON: encoding thousands of nodes at every list would be what a benchmark measures.
        self._nodes: dict[str, bytes] = {}
        self._log: list[tuple[int, str, bytes]] = []
        self._snapshots: dict[str, tuple[int, list[bytes]]] = {}
        self._faults: deque[tuple[Callable[[Request], bool], Fault]] = deque()
        self._changed = threading.Condition()
        self._connections: set[socket.socket] = set()
        self._held = False
        self._server: ThreadingHTTPServer | None = None
        self._epoch = 0

    # What clients see.

    def put(self, node: Object) -> None:
        """Add or change a node."""
        name = node["metadata"]["name"]
        with self._changed:
            self._version += 1
            stored = _encode({**node, "metadata": {**node["metadata"], "resourceVersion": str(self._version)}})
            self._record("MODIFIED" if name in self._nodes else "ADDED", stored)
            self._nodes[name] = stored

    def delete(self, name: str) -> None:
        """Take a node away."""
        with self._changed:
            self._version += 1
            gone = json.loads(self._nodes.pop(name))
            gone["metadata"]["resourceVersion"] = str(self._version)
            self._record("DELETED", _encode(gone))

    def bookmark(self) -> None:
        """Send a bookmark to all watches."""
        with self._changed:
            self._record("BOOKMARK", _encode(self._bookmark()))

    def send(self, line: bytes) -> None:
        """Send a raw line to all watches."""
        with self._changed:
            self._log.append((self._version, "RAW", line + b"\n"))
            self._changed.notify_all()

    def compact(self) -> None:
        """Forget what happened so far: older resource versions and list tokens are answered with 410."""
        with self._changed:
            self._version += 1
            self._floor = self._version
            self._snapshots.clear()

    # Faults.

    def fail(self, fault: Fault, *, times: int = 1, watch: bool | None = None) -> None:
        """Answer the next requests (only watches, only lists, or both) with a fault."""
        for _ in range(times):
            self._faults.append((lambda request: watch is None or request.watch == watch, fault))

    def cut(self) -> None:
        """Break all open connections."""
        with self._changed:
            self._epoch += 1
            for connection in self._connections.copy():
                # Whoever writes to it finds out and closes it.
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            self._connections.clear()
            self._changed.notify_all()

    def hold(self, held: bool) -> None:
        """Accept requests and do not answer, or answer again."""
        with self._changed:
            self._held = held
            self._changed.notify_all()

    # The server.

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def kubeconfig(self, token: str) -> str:
        """A kubeconfig, as JSON."""
        return json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "test",
                "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
                "clusters": [{"name": "test", "cluster": {"server": self.url}}],
                "users": [{"name": "test", "user": {"token": token}}],
            }
        )

    def start(self) -> None:
        """Listen, on the same port as before if there was one."""
        self._server = _make_server(self, self.port)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        """Refuse connections and break those that are open."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
        self.cut()

    @contextlib.contextmanager
    def running(self) -> Iterator["NodeApi"]:
        """Listen while in the block."""
        self.start()
        try:
            yield self
        finally:
            self.stop()

    def _record(self, kind: str, node: bytes) -> None:
        self._log.append((self._version, kind, _event(kind, node)))
        self._changed.notify_all()

    def _bookmark(self) -> Object:
        return {
            "kind": "Node",
            "apiVersion": "v1",
            "metadata": {"resourceVersion": str(self._version), "creationTimestamp": None},
            "spec": {},
            "status": {"daemonEndpoints": {"kubeletEndpoint": {"Port": 0}}, "nodeInfo": {"kubeletVersion": ""}},
        }

    def _fault_of(self, request: Request) -> Fault | None:
        with self._changed:
            for entry in self._faults:
                if entry[0](request):
                    self._faults.remove(entry)
                    return entry[1]
        return None

    def _page(self, query: dict[str, str]) -> bytes | None:
        """A page of a list; None where the token is unknown (any more)."""
        with self._changed:
            token = query.get("continue", "")
            if token:
                name, _, start = token.rpartition("+")
                if name not in self._snapshots:
                    return None
                version, items = self._snapshots[name]
            else:
                name, start = f"snapshot {len(self._snapshots)}/{self._version}", "0"
                version, items = self._version, [self._nodes[key] for key in sorted(self._nodes)]
                self._snapshots[name] = (version, items)
        first = int(start)
        last = first + int(query.get("limit") or len(items) or 1)
        metadata: Object = {"resourceVersion": str(version)}
        if last < len(items):
            metadata |= {"continue": f"{name}+{last}", "remainingItemCount": len(items) - last}
        head = _encode({"kind": "NodeList", "apiVersion": "v1", "metadata": metadata})
        return head[:-1] + b',"items":[' + b",".join(items[first:last]) + b"]}"

    def _events(self, query: dict[str, str], arrived: int) -> Iterator[bytes]:
        """The lines of a watch, until its time is over or connections are cut.

        It came when the log had `arrived` entries: what is sent to all watches after that is for it too.
        """
        since = int(query["resourceVersion"])
        end = time.monotonic() + float(query.get("timeoutSeconds", 300))
        epoch = self._epoch
        position = 0
        bookmark_at = time.monotonic() + self.bookmark_seconds
        with self._changed:
            if since < self._floor:
                yield (
                    b'{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure",'
                    b'"message":"too old resource version","reason":"Expired","code":410}}\n'
                )
                return
            while position < arrived and self._log[position][0] <= since:
                position += 1
        while epoch == self._epoch:
            with self._changed:
                waiting = min(end, bookmark_at) - time.monotonic()
                if position == len(self._log) and waiting > 0:
                    self._changed.wait(waiting)
                lines = [line for _, _, line in self._log[position:]]
                position = len(self._log)
                if not lines and time.monotonic() >= bookmark_at:
                    bookmark_at = time.monotonic() + self.bookmark_seconds
                    lines = [_event("BOOKMARK", _encode(self._bookmark()))]
            yield from lines
            if time.monotonic() >= end:
                return


def _make_server(api: NodeApi, port: int) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
            request = Request(query, self.headers.get("Authorization", ""))
            arrived = len(api._log)
            api.requests.append(request)
            with api._changed:
                while api._held:
                    api._changed.wait()
            fault = api._fault_of(request)
            if fault is not None and fault.cut_after is None:
                self._answer_fault(fault)
            elif parts.path != api.path:
                self._answer(404, _failure(404, "not found"))
            elif request.watch:
                self._watch(query, fault, arrived)
            else:
                page = api._page(query)
                if page is None:
                    self._answer(410, _failure(410, "the provided continue parameter is too old"))
                else:
                    self._answer(200, page, fault)

        def do_POST(self) -> None:
            made = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            fault = api._fault_of(Request({}, self.headers.get("Authorization", "")))
            known = {(path, body["metadata"]["name"]) for path, body in api.posted}
            if fault is not None:
                self._answer_fault(fault)
            elif (self.path, made["metadata"]["name"]) in known:
                self._answer(409, _failure(409, "already exists"))
            else:
                api.posted.append((self.path, made))
                self._answer(201, _encode(made))

        def _answer_fault(self, fault: Fault) -> None:
            body = _failure(fault.status, fault.message) if fault.body is None else fault.body
            headers = {"Retry-After": fault.retry_after} if fault.retry_after else {}
            self._answer(fault.status, body, None, headers)

        def _answer(
            self, status: int, body: bytes, fault: Fault | None = None, headers: dict[str, str] | None = None
        ) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.end_headers()
            if fault is None:
                self.wfile.write(body)
                return
            self.wfile.write(body[: fault.cut_after])
            self.close_connection = True

        def _watch(self, query: dict[str, str], fault: Fault | None, arrived: int) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            left = None if fault is None else fault.cut_after
            for line in api._events(query, arrived):
                if left is not None:
                    line, left = line[:left], left - len(line[:left])
                self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
                if left == 0:
                    self.close_connection = True
                    return
            self.wfile.write(b"0\r\n\r\n")

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False
        allow_reuse_address = True

        def process_request(self, request: Any, client_address: Any) -> None:
            api._connections.add(request)
            super().process_request(request, client_address)

        def shutdown_request(self, request: Any) -> None:
            api._connections.discard(request)
            super().shutdown_request(request)

        def handle_error(self, request: Any, client_address: Any) -> None:
            """A client that goes, or is cut off, is what tests do."""

    return Server(("127.0.0.1", port), Handler)


def _encode(content: Object) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode()


def _event(kind: str, node: bytes) -> bytes:
    return b'{"type":"%s","object":%s}\n' % (kind.encode(), node)


def _failure(code: int, message: str) -> bytes:
    status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code}
    return _encode(status)


def make_node(name: str, labels: dict[str, str], *, size_bytes: int = 13_000, gpus: int = 8) -> Object:
    """A node as a kubelet, GPU feature discovery and the cloud fill one, of about this many bytes of JSON."""
    common = {
        "beta.kubernetes.io/arch": "amd64",
        "beta.kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/os": "linux",
        "kubernetes.io/hostname": name,
        "node.kubernetes.io/instance-type": "gpu-large",
        "nvidia.com/cuda.driver-version.full": "580.95.05",
        "nvidia.com/cuda.driver-version.major": "580",
        "nvidia.com/cuda.runtime-version.full": "13.0",
        "nvidia.com/gfd.timestamp": str(1_760_000_000 + sum(name.encode())),
        "nvidia.com/gpu.compute.major": "8",
        "nvidia.com/gpu.count": str(gpus),
        "nvidia.com/gpu.family": "ampere",
        "nvidia.com/gpu.machine": "Gpu-Large",
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.replicas": "1",
        "nvidia.com/mig.capable": "true",
        "nvidia.com/mig.strategy": "single",
    }
    common |= {f"feature.node.kubernetes.io/cpu-cpuid.FEATURE{number}": "true" for number in range(32)}
    quantities = {"cpu": "96", "memory": "1056286464Ki", "nvidia.com/gpu": str(gpus), "pods": "110"}
    node: Object = {
        "kind": "Node",
        "apiVersion": "v1",
        "metadata": {
            "name": name,
            "uid": f"uid-of-{name}",
            "creationTimestamp": "2026-11-01T00:00:00Z",
            "labels": common | labels,
            "annotations": {
                "node.alpha.kubernetes.io/ttl": "0",
                "csi.volume.kubernetes.io/nodeid": json.dumps({"a": name}),
            },
        },
        "spec": {"podCIDR": "10.0.0.0/24", "providerID": f"cloud:///{name}"},
        "status": {
            "capacity": quantities,
            "allocatable": quantities,
            "conditions": [
                {"type": kind, "status": "False", "lastHeartbeatTime": "2026-11-29T00:00:00Z", "reason": "Kubelet"}
                for kind in ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready")
            ],
            "nodeInfo": {"kubeletVersion": "v1.36.1", "containerRuntimeVersion": "containerd://2.2.0"},
            "images": [],
        },
    }
    image = 0
    missing = size_bytes - len(json.dumps(node, separators=(",", ":")))
    while missing > 0:
        entry = {"names": [f"registry.example/team/image-{image}@sha256:{image:064}"], "sizeBytes": 123456789 + image}
        node["status"]["images"].append(entry)
        missing -= len(json.dumps(entry, separators=(",", ":"))) + 1
        image += 1
    return node
