"""A registry on the loopback that serves a layout, for the runtime to pull from as from any other.

https://github.com/opencontainers/distribution-spec: pulling manifests and blobs.
"""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.containerd.layout import Layout

ADDRESS = "127.0.0.1"
_PATH = re.compile(r"/v2/(?P<name>[a-z0-9-]+)/(?P<kind>manifests|blobs)/(?P<reference>[A-Za-z0-9:._-]+)")


def _find(layouts: dict[str, Layout], path: str) -> tuple[Path, str, str] | None:
    """File, media type and digest of what a path names."""
    match = _PATH.fullmatch(path)
    if match is None or match["name"] not in layouts:
        return None
    layout, reference = layouts[match["name"]], match["reference"]
    media_type = "application/octet-stream"
    if not reference.startswith("sha256:"):
        try:
            descriptor = layout.named(f"{match['name']}:{reference}")
        except KeyError:
            return None
        reference, media_type = descriptor["digest"], descriptor["mediaType"]
    elif match["kind"] == "manifests":
        media_type = _media_type(layout.blob(reference))
    file = layout.blob(reference)
    return (file, media_type, reference) if file.is_file() else None


def _media_type(manifest: Path) -> str:
    found = re.search(
        r'"mediaType":\s*"(application/vnd\.oci\.image\.(?:manifest|index)\.v1\+json)"', manifest.read_text()
    )
    return found[1] if found else "application/vnd.oci.image.manifest.v1+json"


@contextmanager
def serving(layouts: dict[str, Layout]) -> Iterator[str]:
    """Serve each layout as the repository of its key. Yields the registry's host and port."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self, *, body: bool) -> None:
            found = _find(layouts, self.path)
            self.send_response(200 if found or self.path == "/v2/" else 404)
            content = b""
            if found:
                file, media_type, digest = found
                content = file.read_bytes()
                self.send_header("Content-Type", media_type)
                self.send_header("Docker-Content-Digest", digest)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if body:
                self.wfile.write(content)

        def do_GET(self) -> None:
            self.answer(body=True)

        def do_HEAD(self) -> None:
            self.answer(body=False)

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer((ADDRESS, 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield f"{ADDRESS}:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
