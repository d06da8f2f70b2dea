"""The program `isolator-webhook` and its settings."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from pydantic import Field

from isolator_core import names, settings
from isolator_core.errors import UserError
from isolator_core.settings import Command, Positional, Settings
from isolator_webhook import manifest, review, server
from isolator_webhook.basis import AskBasis, Known, Unknown, Vramd, always
from isolator_webhook.options import Options


class PatchSettings(Settings):
    host_dir: str = Field(
        names.HOST_DIR, pattern="^/", description="directory on the node in which libsync keeps the library"
    )
    container_dir: str = Field(
        names.CONTAINER_DIR, pattern="^/", description="directory in the container at which the library appears"
    )
    region_size_mib: int = Field(16, ge=8, le=1 << 20, description="MiB that a container's region may take on the node")

    def options(self) -> Options:
        """What the pure part needs of these settings."""
        return Options(host_dir=self.host_dir, container_dir=self.container_dir, region_size_mib=self.region_size_mib)


class Serve(PatchSettings):
    listen_address: str = Field("0.0.0.0", description="address to listen on, :: for IPv6 and IPv4")
    listen_port: int = Field(names.WEBHOOK_PORT, ge=0, le=65535, description="port to listen on, 0 for a free one")
    certificate_file: Path = Field(Path("/etc/tls/tls.crt"), description="serving certificate chain, PEM")
    key_file: Path = Field(Path("/etc/tls/tls.key"), description="private key of the certificate, PEM")
    vramd_address: str = Field(
        f"localhost:{names.VRAMD_PORT}", description="host:port of vramd, or another gRPC target"
    )
    vramd_deadline_ms: int = Field(200, ge=1, le=10_000, description="milliseconds that an admission waits for vramd")


class Review(PatchSettings):
    file: Annotated[str, Positional()] = Field(description="AdmissionReview or Pod, YAML or JSON; - for standard input")
    output: Literal["review", "patch", "pod"] = Field(
        "review", description="print the AdmissionReview response, the patch in it, or the pod as admitted"
    )
    basis_mib: int | None = Field(None, ge=1, description="MiB of one GPU, in place of vramd's answer")


def _serve(chosen: Serve) -> int:
    @contextlib.asynccontextmanager
    async def source() -> AsyncIterator[AskBasis]:
        async with Vramd(chosen.vramd_address, chosen.vramd_deadline_ms / 1000) as vramd:
            yield vramd.ask

    api = server.app(source, chosen.options())
    return server.serve(api, chosen.listen_address, chosen.listen_port, chosen.certificate_file, chosen.key_file)


def _review(chosen: Review) -> int:
    found = manifest.read(chosen.file)
    basis = Unknown("--basis-mib is not given") if chosen.basis_mib is None else Known(chosen.basis_mib)
    try:
        request = review.decode(found.review).request
    except review.Malformed as malformed:
        raise UserError(f"{chosen.file}: {malformed}") from malformed
    what = asyncio.run(review.outcome(request, always(basis), chosen.options()))
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
