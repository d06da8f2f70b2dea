"""A certificate authority and serving certificates for tests, by openssl."""

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Authority:
    """A certificate authority whose files lie in `directory`."""

    directory: Path

    @property
    def certificate(self) -> str:
        """PEM of its certificate."""
        return (self.directory / "ca.crt").read_text()

    def issue(self, host: str) -> tuple[str, str]:
        """PEM of a certificate for a host name and of its key."""
        name = host.replace(".", "-")
        key, request, certificate = (self.directory / f"{name}.{suffix}" for suffix in ("key", "csr", "crt"))
        extensions = self.directory / f"{name}.ext"
        extensions.write_text(f"subjectAltName=DNS:{host}\nextendedKeyUsage=serverAuth\n")
        _openssl("req", "-newkey", *_NEW_KEY, "-keyout", key, "-out", request, "-subj", "/CN=test", "-nodes")
        _openssl(
            "x509", "-req", "-in", request, "-CA", self.directory / "ca.crt", "-CAkey", self.directory / "ca.key",
            "-CAcreateserial", "-days", "1", "-extfile", extensions, "-out", certificate,
        )  # fmt: skip
        return certificate.read_text(), key.read_text()


_NEW_KEY = ("ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)


def authority(directory: Path) -> Authority:
    """A new authority in an empty directory."""
    _openssl(
        "req", "-x509", "-newkey", *_NEW_KEY, "-keyout", directory / "ca.key", "-out", directory / "ca.crt",
        "-subj", "/CN=test authority", "-days", "1", "-nodes",
    )  # fmt: skip
    return Authority(directory)
