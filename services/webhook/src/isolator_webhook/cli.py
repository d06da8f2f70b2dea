"""The program `isolator-webhook` and its settings."""

import asyncio
import contextlib
import datetime
import posixpath
import re
import signal
import socket
import ssl
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import msgspec
import structlog
from pydantic import AfterValidator, Field, model_validator

from isolator_core import names, settings
from isolator_core.errors import SettingsError, UserError
from isolator_core.request_file import RegionVolume
from isolator_core.requests import HAMI_NAMES, hami
from isolator_core.settings import Command, Positional, Settings, StringList
from isolator_webhook import image_volumes, manifest, review, server
from isolator_webhook import metrics as metrics_module
from isolator_webhook.app import Limits, Source, State, app
from isolator_webhook.basis import Known, Unknown, always
from isolator_webhook.certificate import FileCertificate
from isolator_webhook.managed.cluster import SERVICE_ACCOUNT, Api, Objects, in_cluster_url
from isolator_webhook.managed.keeper import Keeper
from isolator_webhook.managed.rotation import Policy
from isolator_webhook.metrics import Metrics
from isolator_webhook.options import LibraryImage, Options, Treatment
from isolator_webhook.trust import Trust
from isolator_webhook.vramd import ClientTls, Vramd


def _resource_names(value: object) -> object:
    hami.resource_names(value if isinstance(value, tuple) else ())
    return value


def _preloadable(value: str) -> str:
    # ld.so(8): in a preload file white space and colons separate names.
    if not value.startswith("/") or re.search(r"[\s:]", value):
        raise ValueError(
            "accepted is an absolute path without white space and colons, which separate names in a preload file"
        )
    return value


ResourceList = Annotated[StringList, AfterValidator(_resource_names)]


_log = structlog.get_logger()


class DecisionSettings(Settings):
    host_dir: str = Field(
        names.HOST_DIR, pattern="^/", description="directory on the node in which libsync keeps the library"
    )
    container_dir: Annotated[str, AfterValidator(_preloadable)] = Field(
        names.CONTAINER_DIR, description="directory in the container at which the library appears"
    )
    library: Literal["hostPath", "image"] = Field(
        "hostPath", description="where a pod's library comes from: two files of the node, or an image volume"
    )
    library_image: str = Field("", description="image: reference of the image that holds the library")
    library_image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = Field(
        "IfNotPresent", description="image: when the kubelet pulls it"
    )
    image_volume_gate: bool = Field(
        False, description="image: kubelets from 1.31 to 1.34 have the feature gate ImageVolume on"
    )
    region: RegionVolume = Field(
        "emptyDir",
        description="what a container's region lies in: a volume of its pod, or its own directory below containers/ on "
        "the node, as upstream's dashboards want it",
    )
    region_size_mib: int = Field(
        16, ge=8, le=1 << 20, description="MiB that a container's region may take on the node in an emptyDir"
    )
    fraction_of: Literal["card", "basis"] = Field(
        "card", description="take a fraction of the card that is met, or of that and at most of the basis"
    )
    kai_scheduler: str = Field("kai-scheduler", min_length=1, description="spec.schedulerName of KAI's pods")
    kai_reads_containers: bool = Field(
        False, description="KAI reads nvidia.com/container.* annotations, as from 0.18; otherwise a notice says so"
    )
    gpu_share_resources: ResourceList = Field(
        tuple(HAMI_NAMES.listed()), description="resource names of HAMi that are read, an empty value reads none"
    )
    hami_resources: Literal["translate", "cap"] = Field(
        "translate", description="turn HAMi's resources of KAI's pods into annotations, or leave them and cap all pods"
    )
    hami_scheduler: str = Field("hami-scheduler", description="scheduler whose pods get HAMi's own library")
    pod_opt_out: bool = Field(True, description="let a pod opt out by annotation or label")
    guard: Literal["off", "audit", "enforce"] = Field(
        "off", description="what /guard does about pods that reach a GPU without having asked: nothing, tell, prevent"
    )
    guard_exempt_namespaces: StringList = Field(
        ("kai-resource-reservation",), description="namespaces that the guard leaves alone"
    )
    nvidia_runtime_classes: StringList = Field(("nvidia",), description="runtime classes that show containers GPUs")
    nvidia_is_default_runtime: bool = Field(False, description="pods without a runtime class get that runtime too")
    on_internal_error: Literal["deny", "warn"] = Field(
        "deny", description="refuse a sharing pod at a fault of ours, or admit it without a cap and warn"
    )

    @model_validator(mode="after")
    def _whole_library(self) -> Self:
        if (self.library == "image") != bool(self.library_image):
            raise ValueError("--library image and --library-image are accepted together only")
        return self

    def options(self) -> Options:
        """What the pure part needs of these settings."""
        image = LibraryImage(self.library_image, self.library_image_pull_policy, self.image_volume_gate)
        return Options(
            library_image=image if self.library == "image" else None,
            host_dir=posixpath.normpath(self.host_dir),
            container_dir=posixpath.normpath(self.container_dir),
            region=self.region,
            region_size_mib=self.region_size_mib,
            fraction_of=self.fraction_of,
            kai_scheduler=self.kai_scheduler,
            kai_reads_containers=self.kai_reads_containers,
            resources=hami.resource_names(self.gpu_share_resources),
            hami_resources=self.hami_resources,
            hami_scheduler=self.hami_scheduler,
            pod_opt_out=self.pod_opt_out,
            guard=self.guard,
            guard_exempt_namespaces=self.guard_exempt_namespaces,
            nvidia_runtime_classes=self.nvidia_runtime_classes,
            nvidia_is_default_runtime=self.nvidia_is_default_runtime,
            on_internal_error=self.on_internal_error,
        )


class Serve(DecisionSettings):
    listen_address: str = Field("0.0.0.0", description="address to listen on, :: for IPv6 and IPv4")
    listen_port: int = Field(names.WEBHOOK_PORT, ge=0, le=65535, description="port to listen on, 0 for a free one")
    metrics_port: int = Field(
        names.WEBHOOK_METRICS_PORT, ge=0, le=65535, description="port of /metrics, 0 for a free one"
    )
    certificate_file: Path = Field(
        Path("/etc/tls/tls.crt"), description="serving certificate chain, PEM, read again when it changes"
    )
    key_file: Path = Field(Path("/etc/tls/tls.key"), description="private key of the certificate, PEM")
    tls: Literal["files", "managed"] = Field(
        "files", description="take the certificate from those files, or make and rotate it in a Secret"
    )
    namespace: str = Field("", description="namespace of Secret, Lease and Service; default the pod's own")
    secret_name: str = Field("", description="managed: Secret that exists already, empty at first")
    lease_name: str = Field("", description="managed: Lease that exists already")
    service_name: str = Field("", description="Service by which the API server calls the webhook")
    webhook_configurations: StringList = Field(
        (),
        description="MutatingWebhookConfigurations that are to trust the certificate: it is ready once they do; "
        "managed: it makes them",
    )
    pod_name: str = Field(socket.gethostname(), description="managed: this pod, as the Service's endpoints name it")
    api_url: str = Field("", description="the API server; default the pod's own cluster")
    api_token_file: Path | None = Field(SERVICE_ACCOUNT / "token", description="token for the API server")
    api_ca_file: Path | None = Field(SERVICE_ACCOUNT / "ca.crt", description="authority of the API server")
    authority_days: float = Field(1095, gt=0, description="managed: days that an authority is valid")
    leaf_days: float = Field(90, gt=0, description="managed: days that a certificate is valid")
    settle_seconds: float = Field(
        60, gt=0, description="managed: seconds until every API server has seen a changed webhook configuration"
    )
    certificate_poll_seconds: float = Field(5, gt=0, le=60, description="managed: seconds between looks at the Secret")
    vramd_address: str = Field(
        f"localhost:{names.VRAMD_PORT}", min_length=1, description="host:port of vramd, or another gRPC target"
    )
    vramd_deadline_ms: int = Field(200, ge=1, le=10_000, description="milliseconds that an admission waits for vramd")
    vramd_ca_file: Path | None = Field(None, description="authority of vramd's certificate, PEM; without it no TLS")
    vramd_certificate_file: Path | None = Field(None, description="the webhook's certificate for vramd, PEM")
    vramd_key_file: Path | None = Field(None, description="private key of that certificate, PEM")
    body_limit_bytes: int = Field(7 << 20, ge=1 << 10, le=1 << 30, description="bytes that a review may have")
    receive_timeout_seconds: float = Field(10, gt=0, le=600, description="seconds for a request to arrive whole")
    most_reviews: int = Field(256, ge=1, le=10_000, description="reviews at work at once; more wait")
    drain_seconds: float = Field(5, ge=0, le=600, description="seconds to serve on after SIGTERM while not ready")

    @model_validator(mode="after")
    def _whole_tls(self) -> Self:
        if (self.vramd_certificate_file is None) != (self.vramd_key_file is None):
            raise ValueError("--vramd-certificate-file and --vramd-key-file are accepted together only")
        if self.vramd_certificate_file is not None and self.vramd_ca_file is None:
            raise ValueError("--vramd-certificate-file is accepted with --vramd-ca-file only")
        return self

    @model_validator(mode="after")
    def _whole_management(self) -> Self:
        for name in ("secret_name", "lease_name", "service_name", "webhook_configurations"):
            if self.tls == "managed" and not getattr(self, name):
                raise ValueError(f"--{name.replace('_', '-')} is required where --tls is managed")
        if self.webhook_configurations and not self.service_name:
            raise ValueError("--service-name is required with --webhook-configurations")
        return self

    def _own_namespace(self) -> str:
        try:
            return self.namespace or (SERVICE_ACCOUNT / "namespace").read_text().strip()
        except OSError as error:
            raise SettingsError(
                f"--namespace is required with --webhook-configurations outside a pod: {error}"
            ) from error

    def _api(self) -> Api:
        return Api(self.api_url or in_cluster_url(), self.api_token_file, self.api_ca_file)

    def trust(self, context: ssl.SSLContext) -> Trust | None:
        """What readiness waits for, None where no configuration is named. Raises SettingsError outside a cluster."""
        if not self.webhook_configurations:
            return None
        host = f"{self.service_name}.{self._own_namespace()}.svc"
        return Trust(self._api(), self.webhook_configurations, host, context)

    def keeper(self, tell_expiry: Callable[[float], None]) -> Keeper:
        """What manages the certificate. Raises SettingsError outside a cluster."""
        namespace, api = self._own_namespace(), self._api()
        host = f"{self.service_name}.{namespace}.svc"
        return Keeper(
            Objects(api, namespace, self.secret_name, self.lease_name, self.service_name, self.webhook_configurations),
            Policy(
                hosts=(host, f"{host}.cluster.local"),
                authority_life=datetime.timedelta(days=self.authority_days),
                leaf_life=datetime.timedelta(days=self.leaf_days),
                settle=datetime.timedelta(seconds=self.settle_seconds),
            ),
            self.pod_name,
            self.certificate_poll_seconds,
            tell_expiry,
        )

    def vramd_tls(self) -> ClientTls | None:
        """How to speak TLS to vramd, None for not."""
        if self.vramd_ca_file is None:
            return None
        return ClientTls(self.vramd_ca_file, self.vramd_certificate_file, self.vramd_key_file)


class Review(DecisionSettings):
    file: Annotated[str, Positional()] = Field(description="AdmissionReview or Pod, YAML or JSON; - for standard input")
    output: Literal["review", "patch", "pod"] = Field(
        "review", description="print the AdmissionReview response, the patch in it, or the pod as admitted"
    )
    treatment: Treatment = Field(
        "default",
        description="review as in a namespace treated so, or as the guard: default, enforce, exempt, guard, "
        "guard-enforce",
    )
    basis_mib: int | None = Field(None, ge=1, description="MiB of one GPU, in place of vramd's answer")


def _serve(chosen: Serve) -> int:
    # Until the server takes over, there is nothing to finish.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    metrics = Metrics()
    options = chosen.options()
    state = State()
    tls = chosen.vramd_tls()
    if tls is not None:
        tls.credentials()
    certificate: FileCertificate | Keeper
    if chosen.tls == "managed":
        certificate = chosen.keeper(metrics.certificate_expires)
    else:
        certificate = FileCertificate(chosen.certificate_file, chosen.key_file, metrics.certificate_expires)
    trust = chosen.trust(certificate.context)

    @contextlib.asynccontextmanager
    async def source() -> AsyncIterator[Source]:
        image, deadline = options.library_image, chosen.vramd_deadline_ms / 1000
        client = Vramd(chosen.vramd_address, deadline, tls, with_software=image is not None)
        async with client as vramd, certificate.followed():
            metrics.watch_basis(lambda: vramd.cluster, lambda: vramd.age)
            if image is not None:
                metrics.watch_nodes(lambda: image_volumes.count(image_volumes.unfit(vramd.cluster, image)))
            yield Source(vramd.ask, vramd.heard) if trust is None else Source(vramd.ask, vramd.heard, trust.established)

    limits = Limits(chosen.body_limit_bytes, chosen.most_reviews)
    bounds = server.Bounds(chosen.receive_timeout_seconds, chosen.drain_seconds)
    api = app(source, options, metrics, limits, state)
    with (
        server.listen(chosen.listen_address, chosen.listen_port) as listener,
        running(metrics_module.serve(metrics, chosen.listen_address, chosen.metrics_port)) as metrics_server,
    ):
        _log.info("metrics_listening", port=metrics_server.server_address[1])
        if isinstance(certificate, Keeper):
            certificate.obtain()
        server.serve(api, state, listener, certificate.context, bounds)
    return 0


@contextlib.contextmanager
def running(http: ThreadingHTTPServer) -> Iterator[ThreadingHTTPServer]:
    """An HTTP server at work in a thread for the length of a block."""
    thread = threading.Thread(target=http.serve_forever, name="metrics", daemon=True)
    thread.start()
    try:
        yield http
    finally:
        http.shutdown()
        http.server_close()


def _review(chosen: Review) -> int:
    found = manifest.read(chosen.file)
    basis = (
        Unknown("--basis-mib is not given") if chosen.basis_mib is None else Known(chosen.basis_mib, chosen.basis_mib)
    )
    try:
        request = review.decode(found.review).request
    except review.Malformed as malformed:
        raise UserError(f"{chosen.file}: {malformed}") from malformed
    what = asyncio.run(review.outcome(request, always(basis), chosen.options(), chosen.treatment))
    if chosen.output == "review":
        answer: Any = msgspec.to_builtins(review.ReviewAnswer(review.respond(request, what)))
        sys.stdout.write(manifest.write(answer, is_json=True))
        return 0
    if what.result in ("denied", "failed"):
        raise UserError(f"the pod is refused: {what.message}")
    for notice in what.notices:
        print(f"Warning: {notice}", file=sys.stderr)
    if chosen.output == "patch":
        sys.stdout.write(manifest.write(msgspec.to_builtins(what.operations), is_json=True))
    else:
        sys.stdout.write(manifest.write(manifest.apply(found.pod, what.operations), is_json=found.is_json))
    return 0


COMMANDS: list[Command[Any]] = [
    Command("serve", "Answer admission reviews over TLS.", Serve, _serve),
    Command("review", "Answer one review, or admit one Pod manifest, without a server.", Review, _review),
]


def main() -> int:
    """Entry point; returns the exit status."""
    return settings.main(
        "isolator-webhook",
        "ISOLATOR_WEBHOOK_",
        "Mutating admission webhook that gives each sharing pod its limit.",
        COMMANDS,
    )
