"""The order in which certificates are renewed, so that no API server ever meets one that it does not trust.

A new authority goes beside the old one into the bundle; when every API server can have seen that, a certificate signed
by the new one is served; when every replica serves it, the old authority leaves the bundle. Pure: from what is there to
what is to be there next.
"""

import base64
import binascii
import datetime
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from isolator_webhook.managed import authority
from isolator_webhook.managed.authority import Pair

RENEW_AT = 2 / 3
"""Certificates are renewed when this much of their life is over."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Lives, the time in which every API server has seen a changed bundle, and the names to serve."""

    hosts: Sequence[str]
    authority_life: datetime.timedelta = datetime.timedelta(days=1095)
    leaf_life: datetime.timedelta = datetime.timedelta(days=90)
    settle: datetime.timedelta = datetime.timedelta(seconds=60)


@dataclass(frozen=True, slots=True)
class Keyring:
    """What the Secret holds: the authority at work and its leaf, the coming and the going authority."""

    authority: Pair | None = None
    leaf: Pair | None = None
    coming: Pair | None = None
    going: bytes | None = None
    bundled: str = ""
    """`DIGEST TIME`: since when the bundle of that digest has been in every webhook configuration."""

    def bundle(self) -> bytes:
        """The authorities that an API server is to trust, PEM."""
        parts = [pair.certificate for pair in (self.authority, self.coming) if pair is not None]
        return b"".join(parts + ([] if self.going is None else [self.going]))

    def note_bundled(self, now: datetime.datetime) -> "Keyring":
        """The keyring with a note that its bundle is in place; the time stays where that was known."""
        digest = hashlib.sha256(self.bundle()).hexdigest()
        return self if self.bundled.startswith(digest) else replace(self, bundled=f"{digest} {now.isoformat()}")

    def settled(self, now: datetime.datetime, settle: datetime.timedelta) -> bool:
        """Whether the bundle has been in place for so long."""
        digest, _, since = self.bundled.partition(" ")
        if digest != hashlib.sha256(self.bundle()).hexdigest():
            return False
        try:
            return now - datetime.datetime.fromisoformat(since) >= settle
        except (ValueError, TypeError):
            return False


_PAIRS = {"authority": ("ca.crt", "ca.key"), "leaf": ("tls.crt", "tls.key"), "coming": ("next-ca.crt", "next-ca.key")}
_GOING = "old-ca.crt"
_BUNDLED = "bundle-since"


def from_secret(data: Mapping[str, str] | None) -> Keyring:
    """The keyring in a Secret's `data`. A certificate that cannot be read counts as missing, so that it is made anew.

    One without its key stays: it may be what is trusted at the moment.
    """

    def value(key: str) -> bytes:
        try:
            return base64.b64decode((data or {}).get(key, ""), validate=True)
        except binascii.Error:
            return b""

    def certificate(key: str) -> bytes | None:
        text = value(key)
        try:
            authority.parse(text)
        except ValueError:
            return None
        return text

    def pair(certificate_key: str, private_key: str) -> Pair | None:
        found = certificate(certificate_key)
        return Pair(found, value(private_key)) if found else None

    pairs = {name: pair(*keys) for name, keys in _PAIRS.items()}
    return Keyring(
        pairs["authority"],
        pairs["leaf"],
        pairs["coming"],
        certificate(_GOING),
        value(_BUNDLED).decode("utf-8", "replace"),
    )


def to_secret(keyring: Keyring) -> dict[str, str | None]:
    """`data` of the Secret, None for what has to go."""
    data: dict[str, str | None] = {
        _GOING: None if keyring.going is None else base64.b64encode(keyring.going).decode(),
        _BUNDLED: base64.b64encode(keyring.bundled.encode()).decode(),
    }
    for name, (certificate_key, private_key) in _PAIRS.items():
        pair: Pair | None = getattr(keyring, name)
        data[certificate_key] = None if pair is None else base64.b64encode(pair.certificate).decode()
        data[private_key] = None if pair is None else base64.b64encode(pair.key).decode()
    return data


def _due(certificate: bytes, now: datetime.datetime) -> bool:
    return authority.spent(certificate, now) >= RENEW_AT


def _usable(keyring: Keyring, now: datetime.datetime) -> bool:
    return keyring.authority is not None and authority.spent(keyring.authority.certificate, now) < 1


def _leaf_of(keyring: Keyring, signer: Pair, policy: Policy, now: datetime.datetime) -> Keyring:
    return replace(keyring, leaf=authority.make_leaf(signer, policy.hosts, now, policy.leaf_life))


def _anew(policy: Policy, now: datetime.datetime) -> Keyring:
    made = authority.make_authority(now, policy.authority_life)
    return _leaf_of(Keyring(authority=made), made, policy, now)


def step(
    keyring: Keyring, policy: Policy, now: datetime.datetime, *, acknowledged: bool, wish: str = ""
) -> tuple[str, Keyring] | None:
    """The next change and its name, None where nothing is to be done.

    `acknowledged`: every replica that may be called serves the present leaf. `wish`: an administrator wants `leaf` or
    `ca` renewed now. An authority that cannot sign is renewed too, in the same order: its leaf is still trusted.
    """
    if not _usable(keyring, now) or keyring.authority is None:
        return "authority made", _anew(policy, now)
    leaf = keyring.leaf
    signs = authority.signs(keyring.authority)
    if (
        leaf is None
        or not authority.whole(leaf)
        or authority.spent(leaf.certificate, now) >= 1
        or not authority.signed_by(leaf.certificate, keyring.authority.certificate)
        or not authority.serves(leaf.certificate, policy.hosts)
    ):
        if not signs:
            return "authority made", _anew(policy, now)
        return "leaf made", _leaf_of(keyring, keyring.authority, policy, now)
    settled = keyring.settled(now, policy.settle)
    if keyring.coming is not None and authority.signs(keyring.coming):
        if not settled:
            return None
        promoted = replace(keyring, authority=keyring.coming, coming=None, going=keyring.authority.certificate)
        return "authority changed", _leaf_of(promoted, keyring.coming, policy, now)
    if keyring.going is not None and settled and acknowledged:
        return "old authority removed", replace(keyring, going=None)
    wanted = wish == "ca" or keyring.coming is not None or not signs or _due(keyring.authority.certificate, now)
    if keyring.going is None and wanted:
        return "authority announced", replace(keyring, coming=authority.make_authority(now, policy.authority_life))
    if signs and (wish == "leaf" or _due(leaf.certificate, now)):
        return "leaf renewed", _leaf_of(keyring, keyring.authority, policy, now)
    return None
