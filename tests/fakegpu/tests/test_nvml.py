"""NVML through nvidia-ml-py, and the nvidia-smi stand-in over it."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.fakegpu.machine import FOLDER, MIB, Machine, make_machine

RAISES = "def error(call):\n    try: call()\n    except n.NVMLError as raised: return str(raised)\n    return 'none'\n"


def test_init_and_shutdown_are_counted(machine: Machine) -> None:
    with machine.process() as process:
        process.run(RAISES)
        assert process.run("error(n.nvmlDeviceGetCount)") == "Uninitialized"
        process.run("n.nvmlInit(); n.nvmlInit(); n.nvmlShutdown()")
        assert process.run("n.nvmlDeviceGetCount()") == 1
        process.run("n.nvmlShutdown()")
        assert process.run("error(n.nvmlDeviceGetCount), error(n.nvmlShutdown)") == ["Uninitialized"] * 2
        process.run("n.nvmlInit()")
        assert process.run("n.nvmlDeviceGetCount()") == 1


def test_versions(tmp_path: Path) -> None:
    machine = make_machine(tmp_path, driver="570.124.06", cuda="12.8")
    with machine.process() as process:
        process.run("n.nvmlInit()")
        assert process.run("n.nvmlSystemGetDriverVersion(), n.nvmlSystemGetCudaDriverVersion()") == [
            "570.124.06",
            12080,
        ]
        assert process.run("ok(d.cuDriverGetVersion())") == 12080


def test_a_structure_of_another_version_is_refused(machine: Machine) -> None:
    with machine.process() as process:
        process.run(RAISES)
        process.run("n.nvmlInit(); card = n.nvmlDeviceGetHandleByIndex(0)")
        assert process.run("error(lambda: n.nvmlDeviceGetMemoryInfo(card, version=5))") == "Argument version mismatch"


def test_errors_are_nvmls(machine: Machine) -> None:
    with machine.process() as process:
        process.run(RAISES)
        process.run("n.nvmlInit(); card = n.nvmlDeviceGetHandleByIndex(0)")
        assert process.run("error(lambda: n.nvmlDeviceGetHandleByIndex(1))") == "Invalid Argument"
        assert process.run("error(lambda: n.nvmlDeviceGetHandleByUUID('GPU-none'))") == "Not Found"
        assert process.run("error(lambda: n.nvmlDeviceGetFanSpeed(card))") == "Not Supported"
        assert process.run("error(lambda: n.nvmlSystemGetProcessName(4194300))") == "Not Found"


def test_opening_and_closing_nvml_does_not_end_cuda(machine: Machine) -> None:
    with machine.user() as process:
        process.run("p = ok(d.cuMemAlloc(4 << 20))")
        process.run("for _ in range(5): n.nvmlInit(); n.nvmlShutdown()")
        assert machine.used_mib() == 104


def test_the_fields_of_nvidia_smi(machine: Machine) -> None:
    with machine.user() as process:
        process.run("p = ok(d.cuMemAlloc(1 << 30))")
        fields = "index,name,uuid,memory.total,memory.used,memory.free,utilization.gpu,pci.bus_id"
        assert machine.nvidia_smi(f"--query-gpu={fields}", "--format=csv") == (
            "index, name, uuid, memory.total [MiB], memory.used [MiB], memory.free [MiB], utilization.gpu [%], "
            "pci.bus_id\n"
            "0, Tesla T4, GPU-11111111-2222-3333-4444-555555555555, 15360 MiB, 1124 MiB, 14236 MiB, 0 %, "
            "00000000:00:04.0\n"
        )
        assert machine.nvidia_smi("--query-gpu=memory.total", "--format=csv,noheader,nounits") == "15360\n"
        applications = machine.nvidia_smi("--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits")
        assert applications == f"{process.popen.pid}, 1124\n"
        table = machine.nvidia_smi()
        assert "1124MiB / 15360MiB" in table
        assert f"{process.popen.pid}      C" in table
        assert len({len(line) for line in table.splitlines()[1:] if line}) == 1
    assert machine.nvidia_smi("-L") == "GPU 0: Tesla T4 (UUID: GPU-11111111-2222-3333-4444-555555555555)\n"
    assert "No running processes found" in machine.nvidia_smi()


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--query-gpu=colour", "--format=csv"], 2, 'Field "colour" is not a valid field to query.'),
        (["--query-gpu=name"], 2, '"--format=" must be given'),
        (["-i", "7", "-L"], 6, "No devices were found"),
    ],
)
def test_nvidia_smi_says_what_is_wrong(machine: Machine, arguments: list[str], status: int, said: str) -> None:
    command = [sys.executable, str(FOLDER / "nvidia-smi"), *arguments]
    done = subprocess.run(command, env=machine.environment(), capture_output=True, text=True, check=False)
    assert done.returncode == status
    assert said in done.stdout


def test_nvidia_smi_without_a_driver(tmp_path: Path) -> None:
    environment = make_machine(tmp_path).environment(FAKEGPU_CONFIG=str(tmp_path / "none"))
    command = [sys.executable, str(FOLDER / "nvidia-smi")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 9
    assert done.stdout.startswith("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.")


def test_books_agree_with_nvml(machine: Machine) -> None:
    with machine.user() as process:
        process.run("blocks = [ok(d.cuMemAlloc(size)) for size in (1000, 3 << 20, 700)]")
        books = machine.books()
        (entry,) = books["processes"]
        assert entry["requested_bytes"] == 1700 + 3 * MIB
        assert entry["bytes"] == sum(entry["by_kind"].values()) == books["used_bytes"]
        assert books["used_bytes"] == machine.used_mib() * MIB
        process.run("[ok(d.cuMemFree(block)) for block in blocks]")
        assert machine.books()["processes"][0]["requested_bytes"] == 0
