"""TLS and mutual TLS: who gets in, renewal without a restart, wrong files."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import grpc
import pytest

from isolator_core.errors import SettingsError
from isolator_core.proto import vram_pb2, vram_pb2_grpc
from isolator_testing.certificates import Authority, Issued, Pair, replace_at_next_read
from isolator_vramd import tls

from .conftest import WAIT_SECONDS, Vramd

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def nodes_file(tmp_path: Path) -> str:
    path = tmp_path / "nodes.yaml"
    path.write_text("{kind: NodeList, items: [{metadata: {name: a, labels: {nvidia.com/gpu.memory: '15360'}}}]}")
    return str(path)


@pytest.fixture
def authority() -> Authority:
    return Authority()


def basis_mib(vramd: Vramd, ca: Authority | None, client: Issued | None = None) -> int:
    if ca is None:
        channel = grpc.insecure_channel(f"localhost:{vramd.port}")
    else:
        credentials = grpc.ssl_channel_credentials(
            ca.certificate, client.key if client else None, client.certificate if client else None
        )
        channel = grpc.secure_channel(f"localhost:{vramd.port}", credentials)
    with channel:
        answer = vram_pb2_grpc.VramStub(channel).GetBasis(vram_pb2.GetBasisRequest(), timeout=WAIT_SECONDS)
        return int(answer.basis.basis_mib)


def refused(vramd: Vramd, ca: Authority | None, client: Issued | None = None) -> bool:
    with pytest.raises(grpc.RpcError) as error:
        basis_mib(vramd, ca, client)
    return error.value.code() == grpc.StatusCode.UNAVAILABLE


def flags(server: Pair) -> list[str]:
    return ["--tls-cert-file", str(server.certificate), "--tls-key-file", str(server.key)]


def test_server_certificate(vramd: Callable[..., Vramd], nodes_file: str, authority: Authority, tmp_path: Path) -> None:
    server = authority.issue().write(tmp_path)
    running = vramd("--nodes-file", nodes_file, *flags(server))
    assert running.lines[-1]["tls"] == "server"
    assert basis_mib(running, authority) == 15360
    assert refused(running, Authority())
    assert refused(running, None)


def test_mutual_tls_and_renewal(
    vramd: Callable[..., Vramd], nodes_file: str, authority: Authority, tmp_path: Path
) -> None:
    server = authority.issue().write(tmp_path)
    clients = Authority()
    ca = clients.write(tmp_path)
    running = vramd("--nodes-file", nodes_file, *flags(server), "--tls-client-ca-file", str(ca))
    assert running.lines[-1]["tls"] == "mutual"
    client = clients.issue()
    assert basis_mib(running, authority, client) == 15360
    assert refused(running, authority)
    assert refused(running, authority, Authority().issue())

    # A wrong renewal is told and changes nothing.
    server.certificate.write_bytes(authority.issue().certificate)
    assert basis_mib(running, authority, client) == 15360
    line = running.event("certificate_refused")
    assert str(server.certificate) in line["error"]
    assert line["service"] == "isolator-vramd"

    # Everything new, authorities included.
    new_authority, new_clients = Authority(), Authority()
    new_authority.issue().write(tmp_path)
    new_clients.write(tmp_path)
    assert basis_mib(running, new_authority, new_clients.issue()) == 15360
    running.event("certificate_loaded")
    assert refused(running, authority, client)
    assert refused(running, new_authority, client)


def test_files_that_are_replaced_while_they_are_read(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, following = authority.two_generations(tmp_path)
    monkeypatch.setattr("isolator_vramd.tls._check", Mock(side_effect=[SettingsError("of two generations"), None]))
    replace_at_next_read(monkeypatch, now, following)
    assert tls.load(tls.TlsFiles(now / "tls.crt", now / "tls.key"))


JUNK_CA = ("--tls-client-ca-file", "{folder}/junk")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--tls-cert-file", "{folder}/tls.crt"], ["--tls-cert-file and --tls-key-file go together"]),
        (["--tls-client-ca-file", "{folder}/tls.crt"], ["--tls-client-ca-file needs both"]),
        (["--tls-cert-file", "{folder}/none", "--tls-key-file", "{folder}/tls.key"], ["cannot read", "none"]),
        (["--tls-cert-file", "{folder}/tls.crt", "--tls-key-file", "{folder}/other.key"], ["tls.crt", "other.key"]),
        (["--tls-cert-file", "{folder}/junk", "--tls-key-file", "{folder}/tls.key"], ["junk", "no certificate"]),
        (
            [*("--tls-cert-file", "{folder}/tls.crt", "--tls-key-file", "{folder}/tls.key"), *JUNK_CA],
            ["junk", "no certificate"],
        ),
    ],
)
def test_wrong_files_end_with_2(
    arguments: list[str], words: list[str], nodes_file: str, authority: Authority, tmp_path: Path, command: Run
) -> None:
    authority.issue().write(tmp_path)
    authority.issue().write(tmp_path, "other")
    (tmp_path / "junk").write_text("junk")
    done = command("serve", "--nodes-file", nodes_file, *(argument.format(folder=tmp_path) for argument in arguments))
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    for word in words:
        assert word in done.stderr
