"""The serving certificate: loaded into the one TLS context, and loaded again there when it changes."""

import asyncio
import contextlib
import os
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import structlog
from cryptography import x509

from isolator_core.errors import SettingsError

POLL_SECONDS = 1.0
"""Files are compared by content: kubelets and cert-manager replace them by links and renames."""

_MOST_READS = 5

_log = structlog.get_logger()


def make_context() -> ssl.SSLContext:
    """A server's context without a certificate yet."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


def load(context: ssl.SSLContext, certificate: bytes, key: bytes) -> x509.Certificate:
    """Put a PEM pair into a context; connections from now on see it. Returns the leaf.

    Raises ValueError or OSError (ssl.SSLError among them) for what is no pair, and leaves the context as it was.
    """
    leaf = x509.load_pem_x509_certificates(certificate)[0]
    # Only a file can be loaded; this one has no name and is gone with its descriptor.
    descriptor = os.memfd_create("certificate", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, certificate + b"\n" + key)
        for target in (make_context(), context):
            # An encrypted key is refused, where otherwise a passphrase would be asked for at the terminal.
            target.load_cert_chain(f"/proc/self/fd/{descriptor}", password="")
    finally:
        os.close(descriptor)
    return leaf


class FileCertificate:
    """A pair of files that someone else keeps: static, or cert-manager's."""

    def __init__(self, certificate: Path, key: Path, tell_expiry: Callable[[float], None]) -> None:
        """Load the files. Raises SettingsError where they cannot be used."""
        self._certificate = certificate
        self._key = key
        self._tell_expiry = tell_expiry
        self._unreadable = ""
        self._loaded = b"", b""
        self.context = make_context()
        try:
            self._loaded = self._read()
            self._leaf = load(self.context, *self._loaded)
        except (OSError, ValueError) as error:
            raise SettingsError(
                f"--certificate-file {certificate} and --key-file {key} cannot be used: {error}"
            ) from error

    def _read(self) -> tuple[bytes, bytes]:
        """Both files, of one generation: they are replaced together, perhaps between one and the other read.

        Those that are loaded are, so that files that stay as they are are read once.
        """
        found = self._loaded
        for _ in range(_MOST_READS):
            before, found = found, (self._certificate.read_bytes(), self._key.read_bytes())
            if found == before:
                break
        return found

    def _tell(self) -> None:
        leaf = self._leaf
        self._tell_expiry(leaf.not_valid_after_utc.timestamp())
        _log.info("certificate", serial=f"{leaf.serial_number:x}", expires=leaf.not_valid_after_utc.isoformat())

    def refresh(self) -> None:
        """Load the files again if they have changed. A pair that cannot be used is told once and not taken."""
        try:
            found = self._read()
            self._unreadable = ""
            if found == self._loaded:
                return
            self._loaded = found
            self._leaf = load(self.context, *found)
            self._tell()
        except Exception as error:
            # Of any kind: a pair that fails in a way nobody thought of must not make this look the last one.
            if str(error) != self._unreadable:
                self._unreadable = str(error)
                _log.error("certificate_unusable", file=str(self._certificate), error=str(error))

    @contextlib.asynccontextmanager
    async def followed(self) -> AsyncIterator[None]:
        """Look at the files every second for the length of a block."""

        async def follow() -> None:
            while True:
                await asyncio.sleep(POLL_SECONDS)
                self.refresh()

        self._tell()
        task = asyncio.create_task(follow())
        try:
            yield
        finally:
            task.cancel()
