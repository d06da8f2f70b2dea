"""Objects of a cluster as raw bytes: the official client's configuration and transport, without its models.

The client's informer keeps full models of every object (hundreds of megabytes at thousands of nodes); here only the
bytes pass, to be decoded to what is needed. Needs the extra `cluster` of this package.
"""

import socket
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import kubernetes.client
import kubernetes.config
import msgspec
import urllib3
import yaml
from kubernetes.client.exceptions import ApiException
from kubernetes.utils.keepalive import tcp_keepalive_socket_options

from isolator_core.errors import SettingsError

OBJECTS_A_PAGE = 500
CONNECT_SECONDS = 10.0
PAGE_SECONDS = 30.0
ANSWER_SECONDS = 10.0
WATCH_EXTRA_SECONDS = 30.0
LONGEST_LINE_BYTES = 16 << 20

# A connection whose other end is gone is found out within half a minute, idle or not.
_KEEPALIVE = tcp_keepalive_socket_options(idle=15, interval=5, count=3)
_USER_TIMEOUT = (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 30_000)


class ApiError(Exception):
    """A request that failed. `reason` is short and one of few, `status` is 0 where there was no answer."""

    def __init__(self, reason: str, message: str, status: int = 0, retry_after_seconds: float = 0.0) -> None:
        super().__init__(message)
        self.reason = reason
        self.status = status
        self.retry_after_seconds = retry_after_seconds


class Gone(Exception):
    """The API server has forgotten the resource version: only a new list helps."""


class Status(msgspec.Struct):
    """What the API server says of a failure."""

    message: str = ""
    code: int = 0


def load_configuration(
    kubeconfig: Path | None, context: str | None, *, otherwise: str
) -> kubernetes.client.Configuration:
    """How to reach the API server: by a kubeconfig, or by the service account of the pod that this runs in.

    Raises SettingsError that names the file and what is wrong, or says what to give outside a pod: `otherwise`.
    """
    configuration = kubernetes.client.Configuration()
    try:
        if kubeconfig is None:
            kubernetes.config.load_incluster_config(client_configuration=configuration)
        else:
            kubernetes.config.load_kube_config(str(kubeconfig), context, client_configuration=configuration)
    except kubernetes.config.ConfigException as error:
        if kubeconfig is None:
            raise SettingsError(f"not in a pod ({error}): give {otherwise}") from error
        raise SettingsError(f"--kubeconfig {kubeconfig}: {error}") from error
    except (OSError, yaml.YAMLError, TypeError, ValueError) as error:
        text = " ".join(str(error).split())
        raise SettingsError(f"--kubeconfig {kubeconfig}: {text}") from error
    # Retries, and how long to wait between them, are decided in one place: the source.
    configuration.retries = False
    configuration.socket_options = [*_KEEPALIVE, _USER_TIMEOUT]
    return configuration


class ResourceApi:
    """Lists and watches the objects at one path. For one thread, but for `stop`."""

    def __init__(
        self, configuration: kubernetes.client.Configuration, path: str, query: Sequence[tuple[str, str]] = ()
    ) -> None:
        """`path` is that of a list, such as `/api/v1/nodes`; `query` goes with every request, such as a selector."""
        self._client = kubernetes.client.ApiClient(configuration)
        self._path = path
        self._query = list(query)
        self._watching: urllib3.BaseHTTPResponse | None = None
        self._lock = threading.Lock()
        self._stopped = False

    def page(self, continue_token: str) -> bytes:
        """One page of a list, as JSON. Raises Gone where the token has expired, ApiError for any other failure."""
        query = [("limit", str(OBJECTS_A_PAGE))]
        if continue_token:
            query.append(("continue", continue_token))
        response = self._get(query, PAGE_SECONDS)
        try:
            return response.data
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise _failure(error) from error
        finally:
            response.release_conn()

    def watch(self, resource_version: str, timeout_seconds: int) -> Iterator[bytes]:
        """The events after a resource version, a JSON object each, until the API server ends the watch.

        Raises Gone and ApiError as `page` does.
        """
        response = self._get(
            [
                ("watch", "true"),
                ("allowWatchBookmarks", "true"),
                ("resourceVersion", resource_version),
                ("timeoutSeconds", str(timeout_seconds)),
            ],
            timeout_seconds + WATCH_EXTRA_SECONDS,
        )
        with self._lock:
            self._watching = response
        try:
            if not self._stopped:
                yield from _lines(response)
        except Exception as error:
            # However a socket that `stop` has shut down under a read may fail.
            if self._stopped:
                return
            if isinstance(error, urllib3.exceptions.HTTPError | OSError):
                raise _failure(error) from error
            raise
        finally:
            with self._lock:
                self._watching = None
            # The rest of a stream is endless: the connection is closed, not given back.
            response.close()

    def stop(self) -> None:
        """End a watch that another thread reads."""
        with self._lock:
            self._stopped = True
            if self._watching is not None:
                self._watching.shutdown()

    def close(self) -> None:
        """Close all connections."""
        self._client.close()

    def _get(self, query: list[tuple[str, str]], read_seconds: float) -> urllib3.BaseHTTPResponse:
        return request(self._client, "GET", self._path, [*self._query, *query], read_seconds=read_seconds)


def request(
    client: kubernetes.client.ApiClient,
    method: str,
    path: str,
    query: list[tuple[str, str]],
    body: object = None,
    read_seconds: float = ANSWER_SECONDS,
) -> urllib3.BaseHTTPResponse:
    """Ask the API server; the body is sent as JSON and the answer's is not read yet. Raises Gone and ApiError."""
    try:
        method, url, headers, sent, fields = client.param_serialize(
            method,
            path,
            query_params=query,
            header_params={"Accept": "application/json", "Content-Type": "application/json"},
            body=body,
            auth_settings=["BearerToken"],
        )
        response: urllib3.BaseHTTPResponse = client.call_api(
            method, url, headers, sent, fields, _request_timeout=(CONNECT_SECONDS, read_seconds)
        ).response
        if not 200 <= response.status < 300:
            _refuse(response)
    except (urllib3.exceptions.HTTPError, OSError, ApiException, kubernetes.config.ConfigException) as error:
        raise _failure(error) from error
    return response


def _refuse(response: urllib3.BaseHTTPResponse) -> None:
    try:
        status = msgspec.json.decode(response.data, type=Status)
    except msgspec.DecodeError:
        status = Status(message=str(response.reason or ""))
    raise failure_of_status(response.status, status.message, response.headers.get("Retry-After", ""))


def failure_of_status(code: int, message: str, retry_after: str = "") -> ApiError | Gone:
    """What an HTTP status, or the code of a watch's ERROR event, means."""
    if code == 410:
        return Gone(message)
    reasons = {401: "unauthorized", 403: "forbidden", 429: "too_many_requests"}
    reason = reasons.get(code, "server_error" if code >= 500 else "refused")
    seconds = float(retry_after) if retry_after.isascii() and retry_after.isdigit() and len(retry_after) < 6 else 0.0
    return ApiError(reason, f"{code}: {message}", code, seconds)


def _failure(error: Exception) -> ApiError:
    timeout = isinstance(error, urllib3.exceptions.TimeoutError | TimeoutError)
    return ApiError("timeout" if timeout else "connection", f"{type(error).__name__}: {' '.join(str(error).split())}")


def _lines(response: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
    rest = b""
    for chunk in response.stream(1 << 16, decode_content=False):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from filter(None, lines)
        if len(rest) > LONGEST_LINE_BYTES:
            raise ApiError("malformed", f"an event is longer than {LONGEST_LINE_BYTES} bytes")
    if rest:
        raise ApiError("connection", "the watch ended within an event")
