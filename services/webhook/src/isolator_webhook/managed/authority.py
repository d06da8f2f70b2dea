"""Certificate authorities and the serving certificates that they sign. Pure but for the random numbers of keys."""

import datetime
import functools
from collections.abc import Sequence
from dataclasses import dataclass

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_SKEW = datetime.timedelta(hours=1)
"""Certificates are valid from so long before they are made: clocks differ."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its private key, both PEM."""

    certificate: bytes
    key: bytes


@functools.lru_cache(maxsize=16)
def parse(certificate: bytes) -> x509.Certificate:
    """The first certificate of a PEM text. Raises ValueError."""
    return x509.load_pem_x509_certificate(certificate)


def _pem(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    return Pair(
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )


def _builder(
    name: str, key: ec.EllipticCurvePrivateKey, now: datetime.datetime, life: datetime.timedelta
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + life)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def make_authority(now: datetime.datetime, life: datetime.timedelta) -> Pair:
    """A new certificate authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    # Two authorities stand beside each other in a bundle: a name of its own keeps each chain unambiguous.
    name = f"kai-resource-isolator {x509.random_serial_number():x}"[:64]
    builder = _builder(name, key, now, life)
    certificate = (
        builder.issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    return _pem(certificate, key)


def make_leaf(authority: Pair, hosts: Sequence[str], now: datetime.datetime, life: datetime.timedelta) -> Pair:
    """A serving certificate for these host names. Raises ValueError for an authority that cannot be read."""
    issuer = parse(authority.certificate)
    issuer_key = serialization.load_pem_private_key(authority.key, None)
    if not isinstance(issuer_key, ec.EllipticCurvePrivateKey):
        raise ValueError("the authority's key is not on an elliptic curve")
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        _builder(hosts[0][:64], key, now, life)
        .issuer_name(issuer.subject)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
        .sign(issuer_key, hashes.SHA256())
    )
    return _pem(certificate, key)


def serial(certificate: bytes) -> str:
    """The serial number, in hexadecimal. Raises ValueError."""
    return f"{parse(certificate).serial_number:x}"


@functools.lru_cache(maxsize=16)
def whole(pair: Pair) -> bool:
    """Whether the key is the certificate's."""
    try:
        key = serialization.load_pem_private_key(pair.key, None)
        return key.public_key() == parse(pair.certificate).public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return False


def signs(authority: Pair) -> bool:
    """Whether `make_leaf` can sign by this authority."""
    return whole(authority) and isinstance(parse(authority.certificate).public_key(), ec.EllipticCurvePublicKey)


def signed_by(leaf: bytes, authority: bytes) -> bool:
    """Whether an authority signed a certificate."""
    try:
        parse(leaf).verify_directly_issued_by(parse(authority))
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def serves(leaf: bytes, hosts: Sequence[str]) -> bool:
    """Whether a certificate is for all of these host names."""
    try:
        names = parse(leaf).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound):
        return False
    return set(hosts) <= set(names.get_values_for_type(x509.DNSName))


def spent(certificate: bytes, now: datetime.datetime) -> float:
    """How much of a certificate's life is over, 1 or more once it has expired. Raises ValueError."""
    parsed = parse(certificate)
    whole = parsed.not_valid_after_utc - parsed.not_valid_before_utc
    return (now - parsed.not_valid_before_utc) / whole
