"""The demo shows what it says, and each service is needed for the checks that only it can bring about."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.demo import __main__ as demo
from tests.demo import site
from tests.demo.checks import NAMES, memory_series
from tests.node.requirements import require_containers

from isolator_testing.tools import require

pytestmark = [pytest.mark.root, pytest.mark.slow]
ROOT = Path(__file__).parents[1]
PATIENCE = 300.0
NEEDS_A_MANAGED_POD = set(NAMES) - {"without_isolation"}


@pytest.fixture(autouse=True)
def _with_containers() -> None:
    require_containers()


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "tests.demo", *arguments]


def environment(directory: Path) -> dict[str, str]:
    return {**os.environ, "TMPDIR": str(directory)}


@dataclass(frozen=True)
class Run:
    status: int
    table: str
    progress: str
    evidence: dict[str, Any]

    @property
    def failed(self) -> set[str]:
        return {name for name, entry in self.evidence.items() if not entry["ok"]}

    def reasons(self) -> set[str]:
        return {self.evidence[name]["observed"].get("failure", "") for name in self.failed}


def run(tmp_path: Path, *arguments: str) -> Run:
    working = tmp_path / "working"
    working.mkdir()
    evidence = tmp_path / "evidence.json"
    done = subprocess.run(
        command("--evidence", str(evidence), *arguments),
        cwd=ROOT,
        env=environment(working),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert evidence.exists(), done.stderr
    assert list(working.iterdir()) == []
    assert mounts_below(tmp_path) == []
    return Run(done.returncode, done.stdout, done.stderr, json.loads(evidence.read_text()))


def test_everything_is_as_expected(tmp_path: Path) -> None:
    whole = run(tmp_path)
    assert whole.failed == set()
    assert whole.status == 0
    assert "10 of 10 as expected" in whole.table
    assert list(whole.evidence) == list(NAMES)
    assert not [line for line in whole.progress.splitlines() if any(f" {name}: " in line for name in site.SERVICES)]
    for name, entry in whole.evidence.items():
        assert list(entry) == ["expected", "observed", "raw", "ok"], name
        assert entry["observed"] == entry["expected"], name
        assert entry["raw"], name
        assert name in whole.table
        assert f"{name}: ok" in whole.progress


def test_observations_stand_in_the_raw_output(tmp_path: Path) -> None:
    evidence = run(tmp_path).evidence
    raw = {name: "\n".join(entry["raw"]) for name, entry in evidence.items()}
    for name in ("enforced", "shared_in_container", "fraction", "environment_cleared", "cannot_raise"):
        assert '"result": "CUDA_ERROR_OUT_OF_MEMORY"' in raw[name], name
    for name in ("visible_memory", "environment_cleared", "cannot_raise"):
        assert f'"total_bytes": {4147 << 20}' in raw[name], name
    uuids = {
        line.rpartition('"uuid": "')[2].partition('"')[0] for line in evidence["same_gpu"]["raw"] if "uuid" in line
    }
    assert uuids == set(evidence["same_gpu"]["observed"].values())
    assert '"value": "7680m"' in raw["fraction"]
    series, _lines = memory_series(raw["metrics"].partition("hami_")[1] + raw["metrics"].partition("hami_")[2] + "\n")
    assert series == evidence["metrics"]["observed"]


def test_without_vramd_caps_hold_and_only_the_environment_lacks_the_fraction(tmp_path: Path) -> None:
    without = run(tmp_path, "--without", "vramd")
    assert without.failed == {"fraction"}
    assert without.status == 1
    expected, observed = (without.evidence["fraction"][key] for key in ("expected", "observed"))
    assert observed == {**expected, "CUDA_DEVICE_MEMORY_LIMIT": "not set"}


def test_without_the_webhook_no_sharing_pod_is_created(tmp_path: Path) -> None:
    without = run(tmp_path, "--without", "webhook")
    assert without.failed == NEEDS_A_MANAGED_POD
    assert without.status == 1
    (reason,) = without.reasons()
    assert reason.startswith("Internal error occurred: failed calling webhook")


def test_without_libsync_pods_wait_for_the_library(tmp_path: Path) -> None:
    without = run(tmp_path, "--without", "libsync")
    assert without.failed == NEEDS_A_MANAGED_POD
    assert without.status == 1
    (reason,) = without.reasons()
    assert reason.startswith("FailedMount")
    assert "/var/lib/kai-resource-isolator/libvgpu.so is not a file" in reason
    assert reason in without.table


def test_without_the_monitor_only_the_metrics_are_missing(tmp_path: Path) -> None:
    without = run(tmp_path, "--without", "monitor")
    assert without.failed == {"metrics"}
    assert without.status == 1
    assert without.reasons() == {"no monitor is running"}


def mounts_below(directory: Path) -> list[str]:
    """Mounts of this machine that a container's namespace should have kept: all begin below the demo's directory."""
    return [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(directory) in line]


def processes_naming(directory: Path) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if str(directory) in line:
            found.append(line)
    return found


@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda n: signal.Signals(n).name
)
def test_nothing_is_left_of_a_demo_that_is_ended(tmp_path: Path, number: signal.Signals) -> None:
    process = subprocess.Popen(
        command("--evidence", str(tmp_path / "evidence.json")),
        cwd=ROOT,
        env=environment(tmp_path),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    with process.stderr as progress:
        for line in progress:
            if "notebook runs" in line:
                break
        assert len(processes_naming(tmp_path)) > len(site.SERVICES)
        process.send_signal(number)
        status = process.wait(PATIENCE)
    deadline = time.monotonic() + PATIENCE
    while left := processes_naming(tmp_path):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)
    assert mounts_below(tmp_path) == []
    assert not (tmp_path / "evidence.json").exists()
    if number != signal.SIGKILL:
        assert status == 128 + signal.SIGINT
        assert list(tmp_path.iterdir()) == []


def cannot_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> str:
    """The one line that a demo ends with that cannot run."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert demo.main(["--evidence", str(tmp_path / "evidence.json")]) == 2
    assert list(tmp_path.iterdir()) == []
    output, errors = capsys.readouterr()
    assert output == ""
    assert errors.startswith("demo: ")
    assert errors.count("\n") == 1
    return errors


def test_needs_root(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    assert "run as root" in cannot_run(monkeypatch, capsys, tmp_path)


def test_names_the_package_of_a_missing_tool(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("shutil.which", lambda _tool, path: None)  # noqa: ARG005
    assert "setpriv is missing: install the package util-linux" in cannot_run(monkeypatch, capsys, tmp_path)


def test_says_what_is_not_built(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(site, "LIBRARY", site.REPOSITORY / "native/absent/libvgpu.so")
    assert "native/absent/libvgpu.so is not built" in cannot_run(monkeypatch, capsys, tmp_path)


def test_refuses_evidence_in_no_directory(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert demo.main(["--evidence", str(tmp_path / "absent/evidence.json")]) == 2
    assert "absent/evidence.json: give a file in a directory that exists" in capsys.readouterr().err


def test_refuses_a_directory_that_the_loader_cannot_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "a:b").mkdir()
    assert "has a colon" in cannot_run(monkeypatch, capsys, tmp_path / "a:b")


def test_refuses_a_directory_without_exec(tmp_path: Path) -> None:
    require("unshare", package="util-linux")
    script = 'mount -t tmpfs -o noexec tmpfs "$TMPDIR" && exec "$@"'
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, "sh", *command()],
        cwd=ROOT,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("demo: ")
    assert "set TMPDIR" in done.stderr


def test_an_unknown_service_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        demo.main(["--without", "webhok"])
    assert ended.value.code == 2
    errors = capsys.readouterr().err
    assert "webhok" in errors
    assert all(service in errors for service in site.SERVICES)
