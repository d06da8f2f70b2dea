"""The few Kubernetes objects that the rotation needs, over plain HTTP calls: nothing here knows about certificates."""

import http.client
import json
import os
import ssl
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isolator_core.errors import SettingsError

Object = dict[str, Any]

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
CALL_SECONDS = 10.0


class ApiFailed(Exception):
    """A call that the API server did not carry out. `status` is 0 where it did not answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def in_cluster_url() -> str:
    """The API server as a pod finds it. Raises SettingsError outside a cluster."""
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise SettingsError("--api-url is required where KUBERNETES_SERVICE_HOST is not set: outside a cluster")
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


@dataclass(frozen=True, slots=True)
class Api:
    """Where the API server is and how to show who we are; the files are read at each call: the kubelet renews them."""

    url: str
    token_file: Path | None
    ca_file: Path | None

    def _connection(self) -> http.client.HTTPConnection:
        parts = urllib.parse.urlsplit(self.url)
        if parts.scheme == "http":
            return http.client.HTTPConnection(parts.netloc, timeout=CALL_SECONDS)
        context = ssl.create_default_context(cafile=None if self.ca_file is None else str(self.ca_file))
        return http.client.HTTPSConnection(parts.netloc, timeout=CALL_SECONDS, context=context)

    def call(self, method: str, path: str, body: object = None, content_type: str = "application/json") -> Object:
        """Call and return the object. Raises ApiFailed."""
        headers = {"Accept": "application/json", "User-Agent": "kai-resource-isolator-webhook"}
        try:
            if self.token_file is not None:
                headers["Authorization"] = f"Bearer {self.token_file.read_text().strip()}"
            content = None if body is None else json.dumps(body).encode()
            if content is not None:
                headers["Content-Type"] = content_type
            connection = self._connection()
            try:
                connection.request(method, path, content, headers)
                answer = connection.getresponse()
                text = answer.read()
            finally:
                connection.close()
            found = json.loads(text)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise ApiFailed(0, f"{method} {path}: {error}") from error
        if answer.status >= 300 or not isinstance(found, dict):
            message = found.get("message", "") if isinstance(found, dict) else ""
            raise ApiFailed(answer.status, f"{method} {path}: {answer.status} {message}")
        return found


def configuration_path(name: str) -> str:
    """Path of a MutatingWebhookConfiguration."""
    return f"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{name}"


def read_configuration(api: Api, name: str) -> Object:
    """A MutatingWebhookConfiguration. Raises ApiFailed."""
    return api.call("GET", configuration_path(name))


@dataclass(frozen=True, slots=True)
class Objects:
    """The objects by name."""

    api: Api
    namespace: str
    secret: str
    lease: str
    service: str
    configurations: Sequence[str]

    def _in_namespace(self, group: str, resource: str, name: str) -> str:
        return f"{group}/namespaces/{self.namespace}/{resource}/{name}"

    @property
    def _secret_path(self) -> str:
        return self._in_namespace("/api/v1", "secrets", self.secret)

    @property
    def _lease_path(self) -> str:
        return self._in_namespace("/apis/coordination.k8s.io/v1", "leases", self.lease)

    def read_secret(self) -> Object:
        """The Secret. It must exist: a right to create cannot be limited to one name."""
        return self.api.call("GET", self._secret_path)

    def write_secret(self, version: str, data: dict[str, str | None], annotations: dict[str, str | None]) -> Object:
        """Change the Secret, if it is still of this resource version. Raises ApiFailed with status 409 if not."""
        patch = {"metadata": {"resourceVersion": version, "annotations": annotations}, "data": data}
        return self.api.call("PATCH", self._secret_path, patch, "application/merge-patch+json")

    def read_lease(self) -> Object:
        """The Lease."""
        return self.api.call("GET", self._lease_path)

    def write_lease(self, version: str | None, change: Object) -> Object:
        """Merge a change into the Lease, if it is still of this resource version where one is given."""
        if version is not None:
            change = {**change, "metadata": {**change.get("metadata", {}), "resourceVersion": version}}
        return self.api.call("PATCH", self._lease_path, change, "application/merge-patch+json")

    def read_configurations(self) -> list[Object]:
        """The webhook configurations."""
        return [read_configuration(self.api, name) for name in self.configurations]

    def put_bundle(self, configurations: Sequence[Object], bundle: str) -> bool:
        """Have every webhook of the configurations trust this bundle (base64). False where something was changed.

        Raises ApiFailed with status 409 where a configuration is not any more as it was read.
        """
        in_place = True
        for configuration in configurations:
            metadata = configuration["metadata"]
            operations = [
                {"op": "add", "path": f"/webhooks/{position}/clientConfig/caBundle", "value": bundle}
                for position, webhook in enumerate(configuration.get("webhooks") or [])
                if webhook["clientConfig"].get("caBundle") != bundle
            ]
            if operations:
                in_place = False
                as_read = {"op": "replace", "path": "/metadata/resourceVersion", "value": metadata["resourceVersion"]}
                path = configuration_path(metadata["name"])
                self.api.call("PATCH", path, [as_read, *operations], "application/json-patch+json")
        return in_place

    def serving_pods(self) -> set[str]:
        """Names of the pods that the Service may send a call to, those that are ending included."""
        query = urllib.parse.urlencode({"labelSelector": f"kubernetes.io/service-name={self.service}"})
        slices = self.api.call("GET", f"/apis/discovery.k8s.io/v1/namespaces/{self.namespace}/endpointslices?{query}")
        found = set()
        for item in slices.get("items") or []:
            for endpoint in item.get("endpoints") or []:
                conditions = endpoint.get("conditions") or {}
                # An absent condition means true (Kubernetes: EndpointConditions).
                if conditions.get("serving", conditions.get("ready", True)) is not False and endpoint.get("targetRef"):
                    found.add(endpoint["targetRef"]["name"])
        return found
