"""`review`: a person's manifest in, the review, the patch or the pod out."""

import base64
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from isolator_webhook import cli

POD = """\
apiVersion: v1
kind: Pod
metadata:
  name: a
  annotations:
    gpu-fraction: "0.25"
spec:
  schedulerName: kai-scheduler
  containers:
    - name: main
      image: pytorch
"""


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["isolator-webhook", *arguments])
    return cli.main()


@pytest.fixture
def pod(tmp_path: Path) -> Path:
    file = tmp_path / "pod.yaml"
    file.write_text(POD)
    return file


def test_review_of_a_manifest(pod: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "review", str(pod), "--basis-mib", "15360") == 0
    response = json.loads(capsys.readouterr().out)["response"]
    assert response["allowed"] is True
    assert json.loads(base64.b64decode(response["patch"]))[0]["op"] == "add"


def test_pod_of_a_manifest(pod: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "review", str(pod), "--basis-mib", "15360", "--output", "pod") == 0
    out, err = capsys.readouterr()
    assert err == ""
    (container,) = yaml.safe_load(out)["spec"]["containers"]
    assert {"name": "CUDA_DEVICE_MEMORY_LIMIT", "value": "3840m"} in container["env"]
    assert "    kai-resource-isolator.io/request.0: |\n      container=main\n      fraction=0.25\n" in out


def test_anchors_of_yaml_are_not_shared_in_the_pod(
    pod: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = POD + "      env: &env [{name: A, value: x}]\n    - {name: side, env: *env}\n"
    pod.write_text(text)
    assert run(monkeypatch, "review", str(pod), "--basis-mib", "15360", "--output", "pod") == 0
    main, side = yaml.safe_load(capsys.readouterr().out)["spec"]["containers"]
    assert len(main["env"]) == 5
    assert side["env"] == [{"name": "A", "value": "x"}]


def test_json_gives_json(
    pod: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "pod.json"
    file.write_text(json.dumps(yaml.safe_load(POD)))
    assert run(monkeypatch, "review", str(file), "--basis-mib", "15360", "--output", "pod") == 0
    from_json = json.loads(capsys.readouterr().out)
    assert run(monkeypatch, "review", str(pod), "--basis-mib", "15360", "--output", "pod") == 0
    assert from_json == yaml.safe_load(capsys.readouterr().out)


def test_patch(pod: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "review", str(pod), "--output", "patch") == 0
    out, err = capsys.readouterr()
    assert [operation["path"] for operation in json.loads(out)][2:] == [
        "/spec/volumes",
        "/spec/containers/0/volumeMounts",
        "/spec/containers/0/env",
    ]
    assert err.startswith("Warning: container main: CUDA_DEVICE_MEMORY_LIMIT is not set")


def test_admission_review_on_standard_input(
    world: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    document = world.review_of(world.a_pod({"gpu-memory": "1"}))
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(document)))
    assert run(monkeypatch, "review", "-") == 0
    assert json.loads(capsys.readouterr().out)["response"]["uid"] == document["request"]["uid"]
    monkeypatch.setattr(sys, "stdin", io.StringIO(yaml.safe_dump(document)))
    assert run(monkeypatch, "review", "-", "--output", "pod") == 0
    assert len(yaml.safe_load(capsys.readouterr().out)["spec"]["volumes"]) == 4


def test_refused_pod(pod: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pod.write_text(POD.replace('"0.25"', '"25%"'))
    assert run(monkeypatch, "review", str(pod), "--output", "pod") == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert (
        err == "isolator-webhook: the pod is refused: gpu-fraction annotation value must be a positive number smaller "
        "than 1.0\n"
    )
    assert run(monkeypatch, "review", str(pod)) == 0
    assert json.loads(capsys.readouterr().out)["response"]["allowed"] is False


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["0 documents", "AdmissionReview", "Pod"]),
        (POD + "---\n" + POD, ["2 documents"]),
        ("a: [", ["neither YAML nor JSON"]),
        ("{? {a: b} : c, kind: Pod}", ["pod.yaml"]),
        ("kind: !!binary aaaa\n", ["accepted"]),
        ("x: !!set {null}\n", ["accepted"]),
        ("just text", ["str", "accepted"]),
        (POD + "  x: 2026-02-30\n", ["neither YAML nor JSON", "day"]),
        (json.dumps(yaml.safe_load(POD) | {"x": "\ud800"}), ["pod.yaml", "surrogates"]),
        ("[" * 100_000, ["pod.yaml", "deep"]),
        (POD + "  x: &x [*x]\n", ["pod.yaml", "deep"]),
        ("apiVersion: apps/v1\nkind: Deployment\n", ["Deployment of apps/v1", "accepted"]),
        ("apiVersion: admission.k8s.io/v1\nkind: AdmissionReview\n", ["request"]),
        ("apiVersion: admission.k8s.io/v1\nkind: AdmissionReview\nrequest: 5\n", ["request"]),
        (POD.replace('"0.25"', "0.25"), ["annotations", "str"]),
        ("apiVersion: v1\nkind: Pod\nmetadata: 5\nspec: {containers: []}\n", ["metadata"]),
        ("apiVersion: v1\nkind: Pod\nmetadata: {}\n", ["spec"]),
    ],
)
def test_wrong_files_end_with_one_line(
    pod: Path, text: str, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pod.write_text(text)
    assert run(monkeypatch, "review", str(pod), "--output", "pod") == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    for word in words:
        assert word in err


def test_missing_file(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "review", "/no/such/file") == 1
    assert "/no/such/file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--basis-mib", "0"], ["--basis-mib", "'0'"]),
        (["--output", "xml"], ["--output", "'xml'", "'pod'"]),
        (["--host-dir", "relative"], ["--host-dir", "'relative'"]),
        (["--region-size-mib", "1"], ["--region-size-mib", "'1'"]),
        (["--library", "image"], ["--library image and --library-image are accepted together only"]),
        (["--library-image", "x:1"], ["--library image and --library-image are accepted together only"]),
        (["--container-dir", "/opt/a b"], ["--container-dir", "'/opt/a b'"]),
        (["--container-dir", "/opt/a:b"], ["--container-dir", "'/opt/a:b'"]),
    ],
)
def test_wrong_settings(
    pod: Path,
    arguments: list[str],
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(monkeypatch, "review", str(pod), *arguments) == 2
    err = capsys.readouterr().err
    for word in words:
        assert word in err
