"""The server's certificate, and the authority of its clients where mutual TLS is wanted; read anew when they change."""

import contextvars
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import grpc
import structlog

from isolator_core.errors import SettingsError
from isolator_vramd.files import Identity, identity

_log = structlog.get_logger()


@dataclass(frozen=True)
class TlsFiles:
    """PEM files. With `client_ca` a client must show a certificate that this authority signed."""

    certificate: Path
    key: Path
    client_ca: Path | None = None

    def paths(self) -> tuple[Path, ...]:
        """All files that are read."""
        return (self.certificate, self.key) if self.client_ca is None else (self.certificate, self.key, self.client_ca)

    def identity(self) -> tuple[Identity | None, ...]:
        """What changes when any of them is replaced."""
        return tuple(map(identity, self.paths()))


def load(files: TlsFiles) -> grpc.ServerCertificateConfiguration:
    """Read and check the files. Raises SettingsError that names the file and what is wrong with it."""
    while True:
        before = files.identity()
        try:
            contents = [_read(path) for path in files.paths()]
            _check(files)
        except SettingsError:
            if files.identity() == before:
                raise
            continue
        # All of one generation: a Secret's files are replaced together, perhaps right now.
        if files.identity() == before:
            certificate, key, *client_ca = contents
            return grpc.ssl_server_certificate_configuration([(key, certificate)], client_ca[0] if client_ca else None)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror}") from error


def _check(files: TlsFiles) -> None:
    """gRPC says nothing of what is wrong with a certificate, it refuses every client; so ask OpenSSL first."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(files.certificate, files.key, password=_no_password)
    except (OSError, ValueError) as error:
        raise SettingsError(f"{files.certificate} and {files.key} are no certificate and its key: {error}") from error
    if files.client_ca is not None:
        try:
            context.load_verify_locations(files.client_ca)
        except OSError as error:
            raise SettingsError(f"{files.client_ca} holds no certificate: {error}") from error


def _no_password() -> str:
    raise ValueError("the key is encrypted")


def credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """Credentials that follow the files: each handshake looks whether they changed. Wrong new files are logged and the
    last valid ones stay in use. Raises SettingsError if they are wrong now."""
    seen = files.identity()
    initial = load(files)
    context = contextvars.copy_context()

    def renewed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal seen
        now = files.identity()
        if now == seen:
            return None
        seen = now
        try:
            configuration = load(files)
        except SettingsError as error:
            _log.error("certificate_refused", error=str(error), kept="the certificate in use")
            return None
        _log.info("certificate_loaded", file=str(files.certificate))
        return configuration

    def fetch() -> grpc.ServerCertificateConfiguration:
        # In a thread of gRPC's, which knows nothing of what every log line carries. None, for "as before", is part of
        # gRPC's contract and not of its type stubs.
        return cast("grpc.ServerCertificateConfiguration", context.copy().run(renewed))

    return grpc.dynamic_ssl_server_credentials(
        initial, fetch, require_client_authentication=files.client_ca is not None
    )
