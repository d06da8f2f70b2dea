"""Certificate authorities and their certificates for tests, by trustme. Whoever uses it names trustme for its tests."""

import datetime
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import trustme

if TYPE_CHECKING:
    import pytest

LOOPBACK = ("localhost", "127.0.0.1")


@dataclass(frozen=True)
class Pair:
    """A certificate and its key: PEM files."""

    certificate: Path
    key: Path

    def load(self, context: ssl.SSLContext) -> None:
        """Have a server's context show it."""
        context.load_cert_chain(self.certificate, self.key)


@dataclass(frozen=True)
class Issued:
    """A certificate and its key, PEM."""

    certificate: bytes
    key: bytes

    def write(self, directory: Path, name: str = "tls") -> Pair:
        """Write NAME.crt and NAME.key, over what is there; the directory is made where it is missing."""
        directory.mkdir(exist_ok=True)
        pair = Pair(directory / f"{name}.crt", directory / f"{name}.key")
        pair.certificate.write_bytes(self.certificate)
        pair.key.write_bytes(self.key)
        return pair


@dataclass(frozen=True)
class Authority:
    """An authority of its own; what it issues serves hosts and clients alike, for a day unless told otherwise."""

    _authority: trustme.CA = field(default_factory=trustme.CA)

    @property
    def certificate(self) -> bytes:
        """The authority's certificate, PEM."""
        return self._authority.cert_pem.bytes()

    def write(self, directory: Path, name: str = "ca") -> Path:
        """Write NAME.crt."""
        path = directory / f"{name}.crt"
        path.write_bytes(self.certificate)
        return path

    def issue(self, *hosts: str, life: datetime.timedelta = datetime.timedelta(days=1)) -> Issued:
        """A certificate for these host names and addresses, those of loopback by default."""
        expires = datetime.datetime.now(datetime.UTC) + life
        made = self._authority.issue_cert(*(hosts or LOOPBACK), not_after=expires)
        return Issued(made.cert_chain_pems[0].bytes(), made.private_key_pem.bytes())

    def two_generations(self, directory: Path) -> tuple[Path, Path]:
        """Two directories with a pair each, by links: what is there now, and what takes its place in one step."""
        links = directory / "now", directory / "next"
        for link, name in zip(links, ("old", "new"), strict=True):
            self.issue().write(directory / name)
            link.symlink_to(directory / name)
        return links

    def client(self) -> ssl.SSLContext:
        """A client's context that trusts this authority alone, as a caBundle does."""
        context = ssl.create_default_context(cadata=self.certificate.decode())
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context


def replace_at_next_read(monkeypatch: "pytest.MonkeyPatch", now: Path, following: Path) -> None:
    """Put one link in the other's place right after the next file was read: as a kubelet does it, all files at once."""
    read = Path.read_bytes

    def reading(path: Path) -> bytes:
        content = read(path)
        if following.is_symlink():
            following.rename(now)
        return content

    monkeypatch.setattr(Path, "read_bytes", reading)
