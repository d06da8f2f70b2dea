"""Start and stop etcd, kube-apiserver and kube-controller-manager."""

import contextlib
import json
import secrets
import signal
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.cluster import processes, programs, waiting
from tests.cluster.network import LOOPBACK, Network, free_port

READY_SECONDS = 300
SERVICE_RANGE = "10.96.0.0/16"
AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "Metadata", "verbs": ["get", "list", "watch"]},
        # Leases change every few seconds and would drown the rest.
        {"level": "Metadata", "resources": [{"group": "coordination.k8s.io"}, {"group": "events.k8s.io"}]},
        {"level": "RequestResponse", "resources": [{"group": "", "resources": ["pods", "pods/ephemeralcontainers"]}]},
        {"level": "Metadata"},
    ],
}


def _write_json(path: Path, content: object) -> Path:
    path.write_text(json.dumps(content, indent=1) + "\n")
    return path


@dataclass
class ControlPlane:
    """A control plane whose files lie in `state`. `kubeconfig` there is an administrator's."""

    state: Path
    kubernetes: str = programs.DEFAULT_KUBERNETES
    network: Network = LOOPBACK
    feature_gates: Sequence[str] = ()
    admission: Mapping[str, Any] | None = None
    """An AdmissionConfiguration, as a provider's API server may have one."""
    _running: dict[str, processes.Running] = field(default_factory=dict)
    _token: str = field(default_factory=lambda: secrets.token_hex(16))
    _etcd_port: int = 0
    _port: int = 0

    @property
    def kubeconfig(self) -> Path:
        return self.state / "kubeconfig"

    @property
    def audit_log(self) -> Path:
        return self.state / "audit.log"

    @property
    def url(self) -> str:
        return f"https://{self.network.address}:{self._port}"

    @property
    def etcd_url(self) -> str:
        return f"http://{self.network.address}:{self._etcd_port}"

    @property
    def ca_file(self) -> Path:
        """The certificate that the API server made for itself, with the authority that signed it."""
        return self.state / "pki" / "apiserver.crt"

    def _program(self, name: str) -> str:
        return str(programs.ensure(name, self.kubernetes))

    def _start(self, name: str, *arguments: str) -> None:
        command = [*self.network.prefix, self._program(name), *arguments]
        self._running[name] = processes.start(name, command, self.state / f"{name}.log")

    def _prepare(self) -> None:
        (self.state / "pki").mkdir(parents=True, exist_ok=True)
        subprocess.run(
            ["openssl", "genrsa", "-out", self.state / "pki" / "sa.key", "2048"],
            check=True, capture_output=True, timeout=READY_SECONDS,
        )  # fmt: skip
        (self.state / "tokens.csv").write_text(f'{self._token},admin,admin,"system:masters"\n')
        _write_json(self.state / "audit-policy.json", AUDIT_POLICY)
        self._etcd_port = free_port(self.network)
        self._port = free_port(self.network)
        cluster = {"server": self.url, "certificate-authority": str(self.ca_file)}
        _write_json(
            self.kubeconfig,
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "test", "cluster": cluster}],
                "users": [{"name": "admin", "user": {"token": self._token}}],
                "contexts": [{"name": "test", "context": {"cluster": "test", "user": "admin"}}],
                "current-context": "test",
            },
        )
        self.kubeconfig.chmod(0o600)

    def _start_etcd(self) -> None:
        peer = f"http://{self.network.address}:{free_port(self.network)}"
        self._start(
            "etcd", "--name=test", f"--data-dir={self.state / 'etcd'}", "--unsafe-no-fsync", "--log-level=warn",
            f"--listen-client-urls={self.etcd_url}", f"--advertise-client-urls={self.etcd_url}",
            f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=test={peer}",
        )  # fmt: skip

    def start_api_server(self) -> None:
        """Start kube-apiserver on the port it always had, and wait until it is ready."""
        pki = self.state / "pki"
        more = [f"--feature-gates={','.join(self.feature_gates)}"] if self.feature_gates else []
        if self.admission:
            file = _write_json(self.state / "admission.json", self.admission)
            more.append(f"--admission-control-config-file={file}")
        self._start(
            "kube-apiserver", f"--etcd-servers={self.etcd_url}", f"--bind-address={self.network.address}",
            f"--advertise-address={self.network.address}", f"--secure-port={self._port}", f"--cert-dir={pki}",
            "--endpoint-reconciler-type=none", f"--service-cluster-ip-range={SERVICE_RANGE}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={pki / 'sa.key'}", f"--service-account-signing-key-file={pki / 'sa.key'}",
            f"--token-auth-file={self.state / 'tokens.csv'}", "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction", "--enable-aggregator-routing", "--allow-privileged",
            f"--audit-log-path={self.audit_log}", f"--audit-policy-file={self.state / 'audit-policy.json'}",
            # One file of at most 10 GiB: who reads it wants all since the start, which by default goes at 100 MiB.
            "--audit-log-maxsize=10240", *more,
        )  # fmt: skip
        self._wait("kube-apiserver to be ready", "kube-apiserver", self._api_is_ready)

    def _start_controller_manager(self) -> None:
        self._start(
            "kube-controller-manager", f"--kubeconfig={self.kubeconfig}", "--leader-elect=false",
            f"--bind-address={self.network.address}", f"--secure-port={free_port(self.network)}",
            f"--service-account-private-key-file={self.state / 'pki' / 'sa.key'}",
            f"--root-ca-file={self.ca_file}", "--use-service-account-credentials", f"--cert-dir={self.state / 'pki'}",
            # Nodes of a test have no kubelet that keeps them alive.
            "--controllers=*,-node-lifecycle-controller", "--concurrent-gc-syncs=4",
        )  # fmt: skip
        self._wait("the default service account", "kube-controller-manager", self._has_default_service_account)

    def _get(self, path: str) -> bool:
        request = urllib.request.Request(self.url + path, headers={"Authorization": f"Bearer {self._token}"})
        try:
            context = ssl.create_default_context(cafile=str(self.ca_file))
            with urllib.request.urlopen(request, timeout=5, context=context) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def _api_is_ready(self) -> bool:
        return self._get("/readyz")

    def _has_default_service_account(self) -> bool:
        return self._get("/api/v1/namespaces/default/serviceaccounts/default")

    def _wait(self, what: str, program: str, done: Callable[[], bool]) -> None:
        started = said = time.monotonic()
        while not done():
            self._running[program].check_alive()
            now = time.monotonic()
            if now - started > READY_SECONDS:
                raise TimeoutError(f"no {what} after {READY_SECONDS} s:\n{self._running[program].last_lines()}")
            if now - said > waiting.PROGRESS_SECONDS:
                said = now
                waiting.say(f"  waiting for {what} ({now - started:.0f} s)")
            time.sleep(0.2)

    def start(self) -> None:
        """Start everything and return once pods can be created. Raises RuntimeError, TimeoutError, BuildError."""
        started = time.monotonic()
        for name in ("etcd", "kube-apiserver", "kube-controller-manager", "kubectl"):
            self._program(name)
        self._prepare()
        self._start_etcd()
        self.start_api_server()
        self._start_controller_manager()
        waiting.say(f"Kubernetes {self.kubernetes} at {self.url} after {time.monotonic() - started:.0f} s")

    def stop_api_server(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Stop kube-apiserver alone; `start_api_server` brings it back with all that was stored."""
        self._running.pop("kube-apiserver").stop(how)

    def stop(self) -> None:
        """Stop what runs, in the order that keeps the logs quiet."""
        for name in ("kube-controller-manager", "kube-apiserver", "etcd"):
            if name in self._running:
                # A graceful end of the API server waits for open watches; nobody needs that here.
                self._running.pop(name).stop(signal.SIGKILL if name == "kube-apiserver" else signal.SIGTERM)

    def compact(self) -> None:
        """Drop etcd's history, so that a watch from an older resource version answers 410 Gone."""
        status = self._etcd("/v3/maintenance/status", {})
        self._etcd("/v3/kv/compaction", {"revision": status["header"]["revision"], "physical": True})

    def _etcd(self, path: str, body: object) -> dict[str, Any]:
        request = urllib.request.Request(self.etcd_url + path, data=json.dumps(body).encode(), method="POST")
        with urllib.request.urlopen(request, timeout=30) as answer:
            return dict(json.load(answer))


@contextlib.contextmanager
def control_plane(
    state: Path,
    kubernetes: str = programs.DEFAULT_KUBERNETES,
    network: Network = LOOPBACK,
    feature_gates: Sequence[str] = (),
    admission: Mapping[str, Any] | None = None,
) -> Iterator[ControlPlane]:
    """A control plane for the time of a `with` block."""
    plane = ControlPlane(state, kubernetes, network, feature_gates, admission)
    try:
        plane.start()
        yield plane
    finally:
        plane.stop()
