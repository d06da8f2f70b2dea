"""The server as a process: TLS, its paths, its settings, its end."""

import base64
import contextlib
import datetime
import ipaddress
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

WAIT_SECONDS = 60


@dataclass(frozen=True)
class Pair:
    certificate: Path
    key: Path


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    directory = tmp_path_factory.mktemp("tls")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "webhook")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    pair = Pair(directory / "tls.crt", directory / "tls.key")
    pair.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    pair.key.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return pair


def command(pair: Pair, *arguments: str) -> list[str]:
    return [
        sys.executable, "-m", "isolator_webhook", "serve", "--listen-address", "127.0.0.1", "--listen-port", "0",
        "--certificate-file", str(pair.certificate), "--key-file", str(pair.key), "--vramd-address", "127.0.0.1:1",
        *arguments,
    ]  # fmt: skip


@dataclass
class Running:
    process: subprocess.Popen[str]
    client: httpx.Client


@contextlib.contextmanager
def running(pair: Pair) -> Iterator[Running]:
    with subprocess.Popen(command(pair), stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            for line in process.stderr:
                if json.loads(line)["event"] == "listening":
                    break
            port = json.loads(line)["port"]
            context = ssl.create_default_context(cafile=str(pair.certificate))
            with httpx.Client(base_url=f"https://127.0.0.1:{port}", verify=context, timeout=WAIT_SECONDS) as client:
                yield Running(process, client)
        finally:
            process.kill()


@pytest.fixture(scope="module")
def server(pair: Pair) -> Iterator[Running]:
    with running(pair) as started:
        yield started


def test_review_over_tls(server: Running, world: Any) -> None:
    answer = server.client.post("/mutate", json=world.review_of(world.a_pod({"gpu-memory": "4096"})))
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    operations = json.loads(base64.b64decode(answer.json()["response"]["patch"]))
    assert operations[0]["value"] == "container=main\nmemory=4096m\ndevices=1\n"


def test_fraction_without_vramd_is_capped_and_warned(server: Running, world: Any) -> None:
    answer = server.client.post("/mutate", json=world.review_of(world.a_pod({"gpu-fraction": "0.5"})))
    response = answer.json()["response"]
    assert response["allowed"] is True
    assert "vramd at 127.0.0.1:1" in response["warnings"][0]
    assert "fraction=0.5" in json.loads(base64.b64decode(response["patch"]))[0]["value"]


def test_malformed_body(server: Running) -> None:
    answer = server.client.post("/mutate", content=b"nonsense")
    assert answer.status_code == 400
    assert "AdmissionReview" in answer.text


def test_other_paths_and_methods(server: Running) -> None:
    assert server.client.get("/mutate").status_code == 405
    for path in ("/", "/docs", "/openapi.json", "/metrics"):
        assert server.client.get(path).status_code == 404


def test_health_and_readiness(server: Running) -> None:
    assert server.client.get("/healthz").status_code == 200
    deadline = datetime.datetime.now() + datetime.timedelta(seconds=WAIT_SECONDS)
    while server.client.get("/readyz").status_code != 200:
        assert datetime.datetime.now() < deadline


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_ends_cleanly(pair: Pair, number: signal.Signals) -> None:
    with running(pair) as started:
        assert started.client.get("/healthz").status_code == 200
        started.client.close()
        started.process.send_signal(number)
        assert started.process.wait(WAIT_SECONDS) == 0
        assert started.process.stderr is not None
        for line in started.process.stderr:
            assert json.loads(line)["level"] != "error"


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        (["--certificate-file", "/no/such/file"], 2, ["--certificate-file", "/no/such/file"]),
        (["--key-file", "/dev/null"], 2, ["--key-file", "/dev/null"]),
        (["--listen-port", "70000"], 2, ["--listen-port", "'70000'"]),
        (["--listen-address", "192.0.2.1"], 1, ["cannot listen on 192.0.2.1"]),
        (["--vramd-deadline-ms", "0"], 2, ["--vramd-deadline-ms", "'0'"]),
    ],
)
def test_wrong_settings_end_with_one_line(pair: Pair, change: list[str], status: int, words: list[str]) -> None:
    done = subprocess.run(command(pair, *change), capture_output=True, text=True, timeout=WAIT_SECONDS)
    assert done.returncode == status
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    for word in words:
        assert word in done.stderr


def test_port_that_is_taken(pair: Pair) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = subprocess.run(
            command(pair, "--listen-port", port), capture_output=True, text=True, timeout=WAIT_SECONDS
        )
    assert done.returncode == 1
    assert f"port {port}" in done.stderr
    assert done.stderr.count("\n") == 1


def test_settings_by_environment(pair: Pair) -> None:
    environment = os.environ | {"ISOLATOR_WEBHOOK_LISTEN_PROT": "1"}
    done = subprocess.run(command(pair), capture_output=True, text=True, env=environment, timeout=WAIT_SECONDS)
    assert done.returncode == 2
    assert "ISOLATOR_WEBHOOK_LISTEN_PROT" in done.stderr
