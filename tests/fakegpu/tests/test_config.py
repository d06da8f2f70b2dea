"""The configuration: what is wrong is said in one line, and with an honest code."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.fakegpu.machine import T4, Card, make_machine

BOTH = "import ctypes; print(ctypes.CDLL('libcuda.so.1').cuInit(0), ctypes.CDLL('libnvidia-ml.so.1').nvmlInit_v2())"
NO_DEVICE, SYSTEM_NOT_READY, OPERATING_SYSTEM = 100, 802, 304
DRIVER_NOT_LOADED, UNKNOWN, NVML_OPERATING_SYSTEM = 9, 999, 17


def initialise(environment: dict[str, str]) -> tuple[str, list[str]]:
    done = subprocess.run([sys.executable, "-c", BOTH], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip(), done.stderr.splitlines()


def configured(tmp_path: Path, text: str) -> tuple[str, list[str]]:
    machine = make_machine(tmp_path)
    machine.config.write_text(text)
    return initialise(machine.environment())


DEVICE = "[device]\nname = A\nuuid = GPU-11111111-2222-3333-4444-555555555555\nmemory-mib = 100\n"


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("", 0, "lacks state"),
        ("state = s\nnonsense\n", 2, "neither KEY = VALUE nor [device]"),
        ("state = s\ncolour = red\n", 2, "colour = red: expected one of the keys state"),
        ("state = s\ncuda = twelve\n", 2, "cuda = twelve: expected MAJOR.MINOR"),
        ("state = s\ncuda = 10.2\n", 2, "cuda = 10.2: expected MAJOR.MINOR from 11.0 on"),
        ("state = s\n[device]\nname = A\n", 2, "lacks uuid"),
        ("state = s\n[device]\nmemory-mib = 1.5\n", 3, "memory-mib = 1.5: expected a whole number of MiB"),
        ("state = s\n[device]\nmemory-mib = -1\n", 3, "expected a whole number of MiB"),
        ("state = s\n[device]\nuuid = GPU-1\n", 3, "uuid = GPU-1: expected GPU-xxxxxxxx"),
        ("state = s\n[device]\npci = 4\n", 3, "pci = 4: expected DOMAIN:BUS:DEVICE.0"),
        ("state = s\n[device]\nsm-count = 0\n", 3, "sm-count = 0: expected a whole number from 1 to 1024"),
        (f"state = s\n{DEVICE}reserved-mib = 100\n", 2, "reserved-mib of this [device] is not less"),
        (f"state = s\n{DEVICE}{DEVICE}", 6, "has the uuid of the one at line 2"),
        (f"state = s\nvisible = 1\n{DEVICE}", 2, "visible: '1' is no device of this file"),
        (f"state = s\nvisible = 0,0\n{DEVICE}", 2, "visible: '0' is no device of this file, or named twice"),
        (f"state = s\nfaults = cuInit=explode:1\n{DEVICE}", 0, "expected CALL=error:CODE"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, text: str, line: int, said: str) -> None:
    codes, messages = configured(tmp_path, text)
    assert codes == f"{SYSTEM_NOT_READY} {UNKNOWN}"
    assert len(messages) == 2  # one from each library
    assert messages[0] == messages[1]
    assert said in messages[0]
    assert messages[0].startswith("fakegpu: ")
    if line:
        assert f"fakegpu.conf:{line}: " in messages[0]


def test_a_missing_configuration_is_a_missing_driver(tmp_path: Path) -> None:
    environment = make_machine(tmp_path).environment(FAKEGPU_CONFIG=str(tmp_path / "none"))
    codes, messages = initialise(environment)
    assert codes == f"{NO_DEVICE} {DRIVER_NOT_LOADED}"
    assert "cannot read the configuration" in messages[0]


def test_a_state_file_that_cannot_be_used(tmp_path: Path) -> None:
    codes, messages = initialise(make_machine(tmp_path, state="no/such/folder/state").environment())
    assert codes == f"{OPERATING_SYSTEM} {NVML_OPERATING_SYSTEM}"
    assert "cannot open the state file" in messages[0]
    (tmp_path / "text").write_text("hello")
    codes, messages = initialise(make_machine(tmp_path, state="text").environment())
    assert codes == f"{OPERATING_SYSTEM} {NVML_OPERATING_SYSTEM}"
    assert "is not a state file" in messages[0]


def test_a_card_that_changed_its_size_is_refused(tmp_path: Path) -> None:
    assert initialise(make_machine(tmp_path).environment())[0] == "0 0"
    codes, messages = initialise(make_machine(tmp_path, Card(memory_mib=1000)).environment())
    assert codes == f"{OPERATING_SYSTEM} {NVML_OPERATING_SYSTEM}"
    assert "has another size in the state file" in messages[0]


def test_a_full_disk_is_said_and_leaves_nothing(tmp_path: Path) -> None:
    environment = make_machine(tmp_path).environment()
    source = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n{BOTH}"
    done = subprocess.run([sys.executable, "-c", source], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == f"{OPERATING_SYSTEM} {NVML_OPERATING_SYSTEM}\n"
    assert "File too large" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["fakegpu.conf"]


def test_containers_see_their_own_cards_of_one_machine(tmp_path: Path) -> None:
    cards = [
        T4,
        Card(uuid="GPU-22222222-2222-3333-4444-555555555555"),
        Card(uuid="GPU-33333333-2222-3333-4444-555555555555"),
    ]
    folders = [tmp_path / name for name in ("host", "one", "two")]
    for folder in folders:
        folder.mkdir()
    state = str(tmp_path / "state")
    host = make_machine(folders[0], *cards, state=state)
    one = make_machine(folders[1], *cards, state=state, visible=f"{cards[2].uuid}, 0")
    two = make_machine(folders[2], *cards, state=state, visible="")
    with one.user(CUDA_DEVICE_ORDER="PCI_BUS_ID", device=1) as process:
        assert process.run("ok(d.cuDeviceGetCount())") == 2
        assert host.nvidia_smi("--query-gpu=memory.used", "--format=csv,noheader,nounits") == "0\n0\n100\n"
        assert one.nvidia_smi("-L").count("\n") == 2
    with two.process() as process:
        assert process.run("code(d.cuInit(0))") == "NO_DEVICE"
        process.run("n.nvmlInit()")
        assert process.run("n.nvmlDeviceGetCount()") == 0
