"""What each replica does about certificates: load the leaf, say which it serves, and, as the one writer, rotate."""

import asyncio
import base64
import contextlib
import datetime
import ssl
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace

import structlog

from isolator_core.names import ANNOTATION_PREFIX
from isolator_webhook import certificate
from isolator_webhook.managed import authority, rotation
from isolator_webhook.managed.cluster import ApiFailed, Object, Objects
from isolator_webhook.managed.rotation import Keyring, Policy

SERIAL_PREFIX = "serial." + ANNOTATION_PREFIX
"""On the Lease, a key a replica: `serial.kai-resource-isolator.io/POD` is the serial of the leaf that it serves."""

ROTATE_ANNOTATION = ANNOTATION_PREFIX + "rotate"
"""On the Secret: `leaf` or `ca` has that renewed now."""

LEASE_SECONDS = 30

_log = structlog.get_logger()


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _time(text: object) -> datetime.datetime | None:
    try:
        return datetime.datetime.fromisoformat(str(text))
    except ValueError:
        return None


def holds(lease: Object, pod: str, now: datetime.datetime) -> bool | None:
    """Whether this pod is the one writer; None where the Lease is free to be taken."""
    spec = lease.get("spec") or {}
    holder = spec.get("holderIdentity")
    renewed = _time(spec.get("renewTime"))
    life = datetime.timedelta(seconds=spec.get("leaseDurationSeconds") or LEASE_SECONDS)
    if holder == pod:
        return True
    return None if not holder or renewed is None or now - renewed > life else False


@dataclass(slots=True)
class Keeper:
    """One replica's part. `tell_expiry` gets the time at which the leaf expires, in seconds since 1970."""

    objects: Objects
    policy: Policy
    pod: str
    poll_seconds: float
    tell_expiry: Callable[[float], None]
    context: ssl.SSLContext = field(default_factory=certificate.make_context)
    _leaf: bytes = b""
    _damaged: bytes = b""
    _told: str = ""

    def _tell(self, tell: Callable[..., object], event: str, error: Exception) -> None:
        """A line for a turn that failed, not for each of those that fail alike."""
        if self._told != str(error):
            self._told = str(error)
            tell(event, error=str(error))

    def _look_at_authority(self, keyring: Keyring) -> None:
        """Say once of an authority that it cannot sign: it is replaced then, which may take a while."""
        pair = keyring.authority
        if pair is not None and pair.certificate != self._damaged and not authority.signs(pair):
            self._damaged = pair.certificate
            error = "its private key is damaged or not one on an elliptic curve: another takes its place"
            _log.error("authority_unusable", serial=authority.serial(pair.certificate), error=error)

    def _load(self, keyring: Keyring) -> None:
        if keyring.leaf is None or keyring.leaf.certificate == self._leaf:
            return
        leaf = certificate.load(self.context, keyring.leaf.certificate, keyring.leaf.key)
        self._leaf = keyring.leaf.certificate
        self.tell_expiry(leaf.not_valid_after_utc.timestamp())
        _log.info("certificate", serial=f"{leaf.serial_number:x}", expires=leaf.not_valid_after_utc.isoformat())

    def _acknowledge(self) -> None:
        lease = self.objects.read_lease()
        serial = authority.serial(self._leaf)
        key = SERIAL_PREFIX + self.pod
        if ((lease.get("metadata") or {}).get("annotations") or {}).get(key) != serial:
            self.objects.write_lease(None, {"metadata": {"annotations": {key: serial}}})

    def _lead(self, lease: Object, now: datetime.datetime) -> bool:
        """Take or renew the Lease. False where another replica is the writer."""
        held = holds(lease, self.pod, now)
        if held is False:
            return False
        renewed = _time((lease.get("spec") or {}).get("renewTime"))
        if held and renewed is not None and now - renewed < datetime.timedelta(seconds=LEASE_SECONDS / 3):
            return True
        spec = {
            "holderIdentity": self.pod,
            "leaseDurationSeconds": LEASE_SECONDS,
            "renewTime": now.isoformat(timespec="microseconds").replace("+00:00", "Z"),
        }
        try:
            self.objects.write_lease(lease["metadata"]["resourceVersion"], {"spec": spec})
        except ApiFailed as failed:
            if failed.status == 409:
                return False
            raise
        if held is None:
            _log.info("writer", pod=self.pod)
        return True

    def _acknowledged(self, keyring: Keyring) -> bool:
        """Whether every pod that may be called serves the present leaf. Forgets pods that are gone."""
        if keyring.leaf is None:
            return False
        lease = self.objects.read_lease()
        found = (lease["metadata"].get("annotations") or {}).items()
        known = {key.removeprefix(SERIAL_PREFIX): value for key, value in found if key.startswith(SERIAL_PREFIX)}
        serving = self.objects.serving_pods() | {self.pod}
        serial = authority.serial(keyring.leaf.certificate)
        if not all(known.get(pod) == serial for pod in serving):
            return False
        gone = {SERIAL_PREFIX + pod: None for pod in known if pod not in serving}
        if gone:
            self.objects.write_lease(None, {"metadata": {"annotations": gone}})
        return True

    def _rotate(self) -> Keyring:
        """Bring the bundle into place, or take one step. Returns the keyring as it is afterwards.

        Another replica may be the writer by now, however long this takes. So the configurations are read before the
        keyring that decides about them: whoever wrote one of them since then has the API server refuse what follows.
        """
        configurations = self.objects.read_configurations()
        secret, now = self.objects.read_secret(), _now()
        metadata, keyring = secret["metadata"], rotation.from_secret(secret.get("data"))
        wish = (metadata.get("annotations") or {}).get(ROTATE_ANNOTATION, "")
        self._look_at_authority(keyring)
        after, name = keyring, ""
        if keyring.authority is not None:
            in_place = self.objects.put_bundle(configurations, base64.b64encode(keyring.bundle()).decode())
            # A bundle that had to be put back was not in place all the time: its time starts anew.
            after = keyring.note_bundled(now) if in_place else replace(keyring, bundled="")
        acknowledged = after.going is not None and self._acknowledged(after)
        found = rotation.step(after, self.policy, now, acknowledged=acknowledged, wish=wish)
        if found is not None:
            name, after = found
        if after == keyring:
            return keyring
        granted = wish and name in ("authority announced", "leaf renewed")
        self.objects.write_secret(
            metadata["resourceVersion"], rotation.to_secret(after), {ROTATE_ANNOTATION: None} if granted else {}
        )
        if name:
            _log.info("rotation", step=name)
        return after

    def turn(self) -> Keyring:
        """One look at the cluster, and as the one writer what follows from it. Raises ApiFailed, ValueError."""
        if self._lead(self.objects.read_lease(), _now()):
            return self._rotate()
        return rotation.from_secret(self.objects.read_secret().get("data"))

    async def _turns(self) -> None:
        while True:
            try:
                # On the event loop's own thread: no handshake may come between a new certificate and its key.
                self._load(await asyncio.to_thread(self.turn))
                await asyncio.to_thread(self._acknowledge)
                self._told = ""
            except ApiFailed as failed:
                if failed.status != 409:
                    self._tell(_log.warning, "certificate_api_failed", failed)
            except (ValueError, OSError) as error:
                self._tell(_log.error, "certificate_unusable", error)
            except Exception:
                # A turn that fails in a way nobody thought of must not be the last one.
                _log.exception("certificate_turn_failed")
            await asyncio.sleep(self.poll_seconds)

    def obtain(self) -> None:
        """Wait until there is a certificate. It blocks: nothing can be served before."""
        while not self._leaf:
            try:
                self._load(self.turn())
            except (ApiFailed, ValueError, OSError) as error:
                self._tell(_log.warning, "no_certificate_yet", error)
            if not self._leaf:
                time.sleep(min(self.poll_seconds, 1))

    @contextlib.asynccontextmanager
    async def followed(self) -> AsyncIterator[None]:
        """Keep the certificate for the length of a block."""
        task = asyncio.create_task(self._turns())
        try:
            yield
        finally:
            task.cancel()
