"""A small client of the Kubernetes API: one request at a time, JSON both ways, with the token of the pod.

libsync asks for one node and, before `uninstall`, for that node's pods. A whole client library would be most of the
image's code and memory.
"""

import http.client
import json
import os
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from isolator_core.errors import SettingsError, UserError
from isolator_core.settings import Settings

SERVICE_ACCOUNT_DIR = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TIMEOUT_SECONDS = 10

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"


def _url(value: str) -> str:
    parts = urlsplit(value)
    try:
        valid = parts.scheme in ("http", "https") and parts.hostname and parts.path in ("", "/") and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise ValueError("accepted is http://HOST:PORT or https://HOST:PORT")
    return value


class ApiSettings(Settings):
    """How the Kubernetes API is reached."""

    api_server: Annotated[str, AfterValidator(_url)] | None = Field(
        None,
        description="URL of the API server; without it that of the cluster this pod runs in. No token is sent to an"
        " http:// URL, such as that of `kubectl proxy`",
    )
    api_token_file: Path = Field(SERVICE_ACCOUNT_DIR / "token", description="bearer token for the API server")
    api_ca_file: Path = Field(SERVICE_ACCOUNT_DIR / "ca.crt", description="CA certificates of the API server, PEM")


class ApiError(UserError):
    """A request that was not answered, or not with success."""


@dataclass(frozen=True)
class Api:
    """Where the API server is, and with what to speak to it."""

    url: str
    token_file: Path
    ca_file: Path

    def request(self, method: str, path: str, body: object = None, content_type: str = JSON) -> dict[str, Any]:
        """The answer's JSON. Raises ApiError with one sentence for any other outcome."""
        what = f"{method} {self.url}{path}"
        try:
            # Read each time: tokens and CAs are renewed.
            connection, headers = self._connect()
            try:
                data = None if body is None else json.dumps(body)
                connection.request(method, path, data, headers | {"Content-Type": content_type, "Accept": JSON})
                response = connection.getresponse()
                text = response.read()
            finally:
                connection.close()
            answer = json.loads(text) if response.getheader("Content-Type", "").startswith(JSON) else {}
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise ApiError(f"{what}: {error or type(error).__name__}") from error
        if not 200 <= response.status < 300 or not isinstance(answer, dict):
            reason = answer.get("message") if isinstance(answer, dict) else None
            raise ApiError(f"{what}: {response.status} {response.reason}" + (f": {reason}" if reason else ""))
        return answer

    def _connect(self) -> tuple[http.client.HTTPConnection, dict[str, str]]:
        parts = urlsplit(self.url)
        host = parts.hostname or ""
        if parts.scheme == "http":
            return http.client.HTTPConnection(host, parts.port, timeout=TIMEOUT_SECONDS), {}
        context = ssl.create_default_context(cafile=self.ca_file)
        connection = http.client.HTTPSConnection(host, parts.port, timeout=TIMEOUT_SECONDS, context=context)
        return connection, {"Authorization": f"Bearer {self.token_file.read_text().strip()}"}


def connect(settings: ApiSettings) -> Api:
    """The API server that the settings name. Raises SettingsError where there is none."""
    url = settings.api_server
    if url is None:
        host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT")
        if not host or not port:
            raise SettingsError(
                "--api-server (ISOLATOR_LIBSYNC_API_SERVER) is required outside of a cluster:"
                " KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set"
            )
        url = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    return Api(url.rstrip("/"), settings.api_token_file, settings.api_ca_file)
