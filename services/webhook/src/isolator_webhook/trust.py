"""Whether the API server trusts the certificate that is served, without which it refuses sharing pods."""

import asyncio
import base64
import binascii
import ssl
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from isolator_webhook.managed.cluster import Api, ApiFailed, read_configuration

NOTICE_SECONDS = 3.0
"""An API server hears of a changed configuration by its watch, much sooner than this (Kubernetes:
apiserver/pkg/admission/configuration). A rotation, which may take its time, waits longer."""

LOOK_SECONDS = 0.5
_MOST_FLIGHTS = 10

_log = structlog.get_logger()


def accepts(bundle: bytes, context: ssl.SSLContext, host: str) -> bool:
    """Whether a client that trusts this bundle (PEM) alone takes the certificate of a server's context for `host`.

    By a handshake in memory; as Go does, the client takes each certificate of the bundle for an anchor.
    """
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        client.load_verify_locations(cadata=bundle.decode("ascii"))
        ends = [
            client.wrap_bio(to_client, to_server, server_hostname=host),
            context.wrap_bio(to_server, to_client, server_side=True),
        ]
        for _ in range(_MOST_FLIGHTS):
            ends = [end for end in ends if not _done(end)]
    except (ssl.SSLError, ValueError):
        return False
    return not ends


def _done(end: ssl.SSLObject) -> bool:
    try:
        end.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


def distrust(webhooks: Sequence[Mapping[str, Any]], context: ssl.SSLContext, host: str) -> str | None:
    """Why the API server would not trust the certificate in a call to one of these webhooks, None if it would."""
    for webhook in webhooks:
        text = (webhook.get("clientConfig") or {}).get("caBundle")
        if not text:
            return f"webhook {webhook.get('name')} has no caBundle yet"
        try:
            bundle = base64.b64decode(text, validate=True)
        except binascii.Error:
            return f"the caBundle of webhook {webhook.get('name')} is not base64"
        if not accepts(bundle, context, host):
            return f"by the caBundle of webhook {webhook.get('name')} the served certificate is not one for {host}"
    return None


@dataclass(frozen=True, slots=True)
class Trust:
    """Which configurations name this webhook, under which host name, and the context by which it is served."""

    api: Api
    configurations: Sequence[str]
    host: str
    context: ssl.SSLContext

    def _read(self) -> list[Mapping[str, Any]]:
        return [
            webhook
            for name in self.configurations
            for webhook in read_configuration(self.api, name).get("webhooks") or []
        ]

    async def established(self) -> None:
        """Wait until every webhook of the configurations trusts the certificate, and the API server can know that."""
        since: float | None = None
        told: str | None = ""
        while since is None or time.monotonic() - since < NOTICE_SECONDS:
            try:
                webhooks = await asyncio.to_thread(self._read)
                # On the event loop's own thread: no handshake may come between a new certificate and its key.
                reason = distrust(webhooks, self.context, self.host)
            except ApiFailed as failed:
                reason = str(failed)
            if reason is not None:
                since = None
                if reason != told:
                    _log.info("not_trusted_yet", reason=reason)
            elif since is None:
                since = time.monotonic()
            told = reason
            await asyncio.sleep(LOOK_SECONDS)
        _log.info("trusted", host=self.host)
