"""What a test says to a cluster: kubectl, helm, and plain requests whose status and warnings it can look at."""

import http.client
import json
import os
import re
import subprocess
import tempfile
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tests.cluster import processes, programs

T = TypeVar("T")
Object = dict[str, Any]

MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"

ADMIN = ""
CALL_SECONDS = 120
COMMAND_SECONDS = 600
"""More than `release.WAIT_SECONDS`, which helm is told to wait."""


@dataclass(frozen=True)
class Answer:
    """What the API server answered. `warnings` are the texts of its warning headers."""

    status: int
    body: Object
    warnings: tuple[str, ...]

    @property
    def message(self) -> str:
        """The text of a refusal; empty on success."""
        return str(self.body.get("message", "")) if self.status >= 400 else ""

    def ok(self) -> Object:
        """The object. Raises AssertionError with the server's message if the request was refused."""
        assert self.status < 300, f"{self.status}: {self.message}"
        return self.body


@dataclass(frozen=True)
class Cluster:
    """A cluster that a test may use: a kubeconfig, its version, and a proxy on loopback that authenticates."""

    kubeconfig: Path
    kubectl_program: Path
    proxy_port: int

    def environment(self) -> dict[str, str]:
        return os.environ | {"KUBECONFIG": str(self.kubeconfig)}

    def kubectl(self, *arguments: str, stdin: str | None = None, check: bool = True) -> str:
        """Run kubectl and return its standard output. Raises AssertionError with its standard error."""
        return self._run([str(self.kubectl_program), *arguments], stdin, check)

    def helm(self, *arguments: str, version: int = 4, check: bool = True) -> str:
        """Run helm 3 or 4 and return its standard output. Raises AssertionError with its standard error."""
        return self._run([str(programs.ensure(f"helm{version}")), *arguments], None, check)

    def _run(self, command: Sequence[str], stdin: str | None, check: bool) -> str:
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, check=False,
            env=self.environment(), timeout=COMMAND_SECONDS,
        )  # fmt: skip
        assert not check or done.returncode == 0, f"{' '.join(command)}: {done.stderr or done.stdout}"
        return done.stdout if done.returncode == 0 else done.stdout + done.stderr

    def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        user: str = ADMIN,
        groups: Sequence[str] = (),
        content_type: str = "application/json",
        query: Mapping[str, str] | None = None,
    ) -> Answer:
        """One request. With `user`, on behalf of that user, whom authorisation and admission then see.

        Raises TimeoutError that names the request, OSError.
        """
        headers = {"Content-Type": content_type}
        payload = b"" if body is None else json.dumps(body).encode()
        with closing(http.client.HTTPConnection("127.0.0.1", self.proxy_port, timeout=CALL_SECONDS)) as connection:
            connection.putrequest(method, path + (f"?{urllib.parse.urlencode(query)}" if query else ""))
            for name, value in (headers | {"Content-Length": str(len(payload))}).items():
                connection.putheader(name, value)
            if user:
                connection.putheader("Impersonate-User", user)
                for group in (*groups, "system:authenticated"):
                    connection.putheader("Impersonate-Group", group)
            try:
                connection.endheaders(payload)
                answer = connection.getresponse()
                content = answer.read()
            except TimeoutError as error:
                raise TimeoutError(f"{method} {path}: no answer within {CALL_SECONDS} s") from error
        try:
            decoded = json.loads(content)
        except json.JSONDecodeError:
            decoded = {"message": content.decode(errors="replace")}
        warnings = [text for header in answer.headers.get_all("Warning", []) for text in _warning_texts(header)]
        return Answer(answer.status, decoded, tuple(warnings))

    def create(self, manifest: Object, **options: Any) -> Answer:
        """Create an object; its kind must be one of `PLURALS`."""
        return self.call("POST", path_of(manifest, named=False), manifest, **options)

    def get(self, manifest: Object) -> Answer:
        return self.call("GET", path_of(manifest))

    def delete(self, manifest: Object) -> Answer:
        return self.call("DELETE", path_of(manifest), query={"gracePeriodSeconds": "0"})

    def apply(self, *manifests: Object) -> None:
        """Server-side apply as the administrator. Raises AssertionError with the first refusal."""
        for manifest in manifests:
            query = {"fieldManager": "test", "force": "true"}
            self.call("PATCH", path_of(manifest), manifest, content_type=APPLY_PATCH, query=query).ok()

    @contextmanager
    def scratch_namespace(self, name: str, labels: Mapping[str, str] | None = None) -> Iterator[str]:
        """A namespace that goes away with the block, and in which pods can be created at once."""
        namespace: Object = {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": name, "labels": labels or {}},
        }
        # One of that name may still be on its way out.
        wait_for_answer(lambda: self.create(namespace), 201, f"new namespace {name}")
        account: Object = {"kind": "ServiceAccount", "metadata": {"name": "default", "namespace": name}}
        wait_for_answer(lambda: self.get(account), 200, f"default service account of {name}")
        try:
            yield name
        finally:
            self.delete(namespace)

    def version(self) -> tuple[int, int]:
        """Major and minor version of the API server."""
        body = self.call("GET", "/version").ok()
        return int(body["major"]), int(re.sub(r"\D.*", "", body["minor"]))


_WARNING = re.compile(r'299 \S+ "((?:[^"\\]|\\.)*)"')


def _warning_texts(header: str) -> list[str]:
    return [text.replace('\\"', '"').replace("\\\\", "\\") for text in _WARNING.findall(header)]


PLURALS = {
    "ClusterRole": ("apis/rbac.authorization.k8s.io/v1", "clusterroles", False),
    "ClusterRoleBinding": ("apis/rbac.authorization.k8s.io/v1", "clusterrolebindings", False),
    "ConfigMap": ("api/v1", "configmaps", True),
    "DaemonSet": ("apis/apps/v1", "daemonsets", True),
    "Deployment": ("apis/apps/v1", "deployments", True),
    "Lease": ("apis/coordination.k8s.io/v1", "leases", True),
    "HorizontalPodAutoscaler": ("apis/autoscaling/v2", "horizontalpodautoscalers", True),
    "EndpointSlice": ("apis/discovery.k8s.io/v1", "endpointslices", True),
    "MutatingWebhookConfiguration": (
        "apis/admissionregistration.k8s.io/v1", "mutatingwebhookconfigurations", False),
    "Namespace": ("api/v1", "namespaces", False),
    "NetworkPolicy": ("apis/networking.k8s.io/v1", "networkpolicies", True),
    "PodDisruptionBudget": ("apis/policy/v1", "poddisruptionbudgets", True),
    "ResourceQuota": ("api/v1", "resourcequotas", True),
    "Node": ("api/v1", "nodes", False),
    "Pod": ("api/v1", "pods", True),
    "ReplicaSet": ("apis/apps/v1", "replicasets", True),
    "Role": ("apis/rbac.authorization.k8s.io/v1", "roles", True),
    "RoleBinding": ("apis/rbac.authorization.k8s.io/v1", "rolebindings", True),
    "RuntimeClass": ("apis/node.k8s.io/v1", "runtimeclasses", False),
    "Secret": ("api/v1", "secrets", True),
    "Service": ("api/v1", "services", True),
    "ServiceAccount": ("api/v1", "serviceaccounts", True),
    "ValidatingAdmissionPolicy": (
        "apis/admissionregistration.k8s.io/v1", "validatingadmissionpolicies", False),
    "ValidatingAdmissionPolicyBinding": (
        "apis/admissionregistration.k8s.io/v1", "validatingadmissionpolicybindings", False),
}  # fmt: skip


def path_of(manifest: Object, *, named: bool = True) -> str:
    """Path of an object, or of the collection it belongs to."""
    prefix, plural, namespaced = PLURALS[manifest["kind"]]
    metadata = manifest.get("metadata", {})
    parts = [prefix, *(["namespaces", metadata.get("namespace", "default")] if namespaced else []), plural]
    return "/" + "/".join([*parts, metadata["name"]] if named else parts)


def wait_until(condition: Callable[[], T], what: str, seconds: float = 120) -> T:
    """Return the first true answer of `condition`. Raises TimeoutError that names what was waited for."""
    end = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > end:
            raise TimeoutError(f"no {what} after {seconds:.0f} s")
        time.sleep(0.1)


def wait_for_answer(ask: Callable[[], Answer], status: int, what: str, seconds: float = 120) -> Answer:
    """Return the first answer of that status. Raises TimeoutError with what was waited for and the last answer."""
    last: list[Answer] = []

    def answered() -> bool:
        last[:] = [ask()]
        return last[0].status == status

    try:
        wait_until(answered, what, seconds)
    except TimeoutError as error:
        raise TimeoutError(f"{error}: {last[0].status} {last[0].message}") from error
    return last[0]


@contextmanager
def connect(kubeconfig: Path, kubernetes: str = programs.DEFAULT_KUBERNETES) -> Iterator[Cluster]:
    """A cluster by its kubeconfig, for the time of a `with` block."""
    kubectl = programs.ensure("kubectl", kubernetes)
    command = [str(kubectl), "proxy", "--port=0", f"--kubeconfig={kubeconfig}"]
    with tempfile.TemporaryDirectory(prefix="isolator-proxy-") as directory:
        proxy = processes.start("kubectl proxy", command, Path(directory) / "log")

        def port() -> int:
            proxy.check_alive()
            found = re.search(r"Starting to serve on \S+:(\d+)", proxy.log.read_text())
            return int(found[1]) if found else 0

        try:
            yield Cluster(kubeconfig, kubectl, wait_until(port, "port that kubectl proxy says it serves on"))
        finally:
            proxy.stop()
