"""Whose process it is, by every way in which runtimes write cgroups."""

import os
from pathlib import Path

import pytest

from isolator_monitor.cgroups import Owner, owners, parse

UID = "5e2f7a2c-9f4a-4b53-8d5c-2f1f3b9a7e10"
SLICE = "kubepods-burstable-pod" + UID.replace("-", "_") + ".slice"
ID = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    "text",
    [
        f"0::/kubepods.slice/kubepods-burstable.slice/{SLICE}/cri-containerd-{ID}.scope\n",
        f"0::/../../{SLICE}/crio-{ID}.scope/container\n",
        f"0::/kubelet.slice/kubelet-kubepods.slice/{SLICE}/docker-{ID}.scope\n",
        f"0::/kubepods/besteffort/pod{UID}/{ID}\n",
        f"12:devices:/kubepods/pod{UID}/{ID}\n11:memory:/kubepods/pod{UID}/{ID}\n0::/\n",
    ],
)
def test_processes_of_pods(text: str) -> None:
    assert parse(text) == Owner(UID, ID)


@pytest.mark.parametrize("text", ["", "0::/\n", "0::/user.slice/session-1.scope\n", f"0::/kubepods/pod{UID}\n"])
def test_processes_outside_pods(text: str) -> None:
    assert parse(text) is None


def test_a_process_that_is_gone_has_no_owner(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "cgroup").write_text(f"0::/kubepods/pod{UID}/{ID}\n")
    assert owners([7, 8], tmp_path) == {7: Owner(UID, ID)}
    assert owners([os.getpid()]) == {}


def test_a_cgroup_with_a_name_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "cgroup").write_bytes(f"0::/kubepods/pod{UID}/{ID}/".encode() + b"\xff\xfe\n")
    assert owners([7], tmp_path) == {7: Owner(UID, ID)}
