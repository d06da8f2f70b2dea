"""Devices: how CUDA numbers and describes them, and how NVML does."""

from pathlib import Path

import pytest
from tests.fakegpu.machine import MIB, Card, Machine, make_machine

FAST = Card("GPU-aaaaaaaa-0000-0000-0000-000000000001", "Fast", 81920, {"sm-count": "132", "pci": "0000:81:00.0"})
SLOW = Card("GPU-aaaabbbb-0000-0000-0000-000000000002", "Slow", 15360, {"sm-count": "40", "pci": "0000:01:00.0"})
MIDDLE = Card("GPU-cccccccc-0000-0000-0000-000000000003", "Middle", 40960, {"sm-count": "108", "pci": "0000:41:00.0"})
MIG_PARENT = "GPU-dddddddd-0000-0000-0000-000000000004"
MIG = [
    Card(
        MIG_PARENT,
        f"Part {part}",
        10240,
        {"mig-uuid": f"MIG-eeeeeee{part}-0000-0000-0000-000000000005", "pci": "0000:91:00.0"},
    )
    for part in (1, 2)
]
NAMES = "[ok(d.cuDeviceGetName(64, i)) for i in range(ok(d.cuDeviceGetCount()))]"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return make_machine(tmp_path, SLOW, MIDDLE, FAST)


@pytest.mark.parametrize(
    ("variables", "names"),
    [
        ({}, ["Fast", "Middle", "Slow"]),
        ({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, ["Slow", "Middle", "Fast"]),
        ({"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, ["Fast", "Middle", "Slow"]),
        ({"CUDA_VISIBLE_DEVICES": "2,0"}, ["Slow", "Fast"]),
        ({"CUDA_VISIBLE_DEVICES": "2,0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, ["Fast", "Slow"]),
        ({"CUDA_VISIBLE_DEVICES": "0,2,-1,1"}, ["Fast", "Slow"]),
        ({"CUDA_VISIBLE_DEVICES": "0,3,1"}, ["Fast"]),
        ({"CUDA_VISIBLE_DEVICES": "0,1x,2"}, ["Fast", "Middle", "Slow"]),
        ({"CUDA_VISIBLE_DEVICES": " 1 , 0 "}, ["Middle", "Fast"]),
        ({"CUDA_VISIBLE_DEVICES": FAST.uuid}, ["Fast"]),
        ({"CUDA_VISIBLE_DEVICES": f"GPU-c,{SLOW.uuid}"}, ["Middle", "Slow"]),
        ({"CUDA_VISIBLE_DEVICES": "GPU-aaaab"}, ["Slow"]),
        ({"CUDA_VISIBLE_DEVICES": "1,GPU-aaaa,0"}, ["Middle"]),
        ({"NVIDIA_VISIBLE_DEVICES": "void"}, ["Fast", "Middle", "Slow"]),
    ],
)
def test_cuda_numbers_the_visible_devices(machine: Machine, variables: dict[str, str], names: list[str]) -> None:
    with machine.process(wrapper=(), **variables) as process:
        process.run("ok(d.cuInit(0))")
        assert process.run(NAMES) == names


@pytest.mark.parametrize("visible", ["", "-1", "3", "none", "0,0", "GPU-", "GPU-aaaa", "MIG-1", ","])
def test_no_device_is_an_error_of_cuinit(machine: Machine, visible: str) -> None:
    with machine.process(CUDA_VISIBLE_DEVICES=visible) as process:
        assert process.run("code(d.cuInit(0)), code(d.cuDeviceGetCount())") == ["NO_DEVICE", "NOT_INITIALIZED"]


def test_nvml_ignores_the_variables_and_orders_by_address(machine: Machine) -> None:
    with machine.process(CUDA_VISIBLE_DEVICES="", NVIDIA_VISIBLE_DEVICES="none") as process:
        process.run("n.nvmlInit(); cards = [n.nvmlDeviceGetHandleByIndex(i) for i in range(n.nvmlDeviceGetCount())]")
        assert process.run("[n.nvmlDeviceGetName(card) for card in cards]") == ["Slow", "Middle", "Fast"]
        assert process.run("n.nvmlDeviceGetPciInfo(cards[2]).busId") == "00000000:81:00.0"
        assert process.run("n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByPciBusId('0000:41:00.0'))") == 1
        assert process.run(f"n.nvmlDeviceGetName(n.nvmlDeviceGetHandleByUUID('{FAST.uuid}'))") == "Fast"


def test_a_device_describes_itself(machine: Machine) -> None:
    with machine.process() as process:
        process.run("ok(d.cuInit(0))")
        assert process.run("ok(d.cuDeviceGetUuid(0)).bytes.hex()") == FAST.uuid.removeprefix("GPU-").replace("-", "")
        assert process.run("ok(d.cuDeviceTotalMem(0))") == 81920 * MIB
        assert process.run("ok(d.cuDeviceGetPCIBusId(64, 0)).rstrip(bytes(1))") == "0000:81:00.0"
        assert process.run("int(ok(d.cuDeviceGetByPCIBusId(b'0000:01:00.0')))") == 2
        attribute = "d.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT"
        assert process.run(f"ok(d.cuDeviceGetAttribute({attribute}, 0))") == 132
        assert process.run("code(d.cuDeviceGet(3)), code(d.cuDeviceGetName(64, -1))") == ["INVALID_DEVICE"] * 2


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        (None, ["Fast", "Middle"]),
        ("MIG-eeeeeee2", ["Part 2"]),
        ("MIG-eeeeeee1,MIG-eeeeeee2", ["Part 1"]),
        (f"{FAST.uuid},MIG-eeeeeee1", ["Fast"]),
    ],
)
def test_cuda_sees_one_mig_device_at_a_time(tmp_path: Path, visible: str | None, names: list[str]) -> None:
    machine = make_machine(tmp_path, *MIG, FAST, MIDDLE)
    with machine.process(wrapper=(), **({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})) as process:
        process.run("ok(d.cuInit(0))")
        assert process.run(NAMES) == names


def test_a_mig_device_has_its_own_uuid_and_memory(tmp_path: Path) -> None:
    machine = make_machine(tmp_path, *MIG)
    with machine.user(CUDA_VISIBLE_DEVICES="MIG-eeeeeee2") as process:
        process.run("p = ok(d.cuMemAlloc(1 << 30))")
        assert process.run("ok(d.cuDeviceGetUuid(0)).bytes.hex()").startswith("eeeeeee2")
        process.run("import ctypes; first = ctypes.create_string_buffer(16)")
        process.run("ctypes.CDLL('libcuda.so.1').cuDeviceGetUuid(first, 0)")  # the first version gives the card
        assert process.run("first.raw.hex()") == MIG_PARENT.removeprefix("GPU-").replace("-", "")
        process.run("n.nvmlInit(); card = n.nvmlDeviceGetHandleByIndex(0)")
        assert process.run("n.nvmlDeviceGetMigMode(card)") == [1, 1]
        process.run("parts = [n.nvmlDeviceGetMigDeviceHandleByIndex(card, i) for i in range(2)]")
        assert process.run("[n.nvmlDeviceGetMemoryInfo(part).used >> 20 for part in parts]") == [0, 1124]
        assert process.run("n.nvmlDeviceGetMemoryInfo(card).total >> 20") == 20480
        assert process.run("n.nvmlDeviceGetUUID(parts[0])") == MIG[0].extra["mig-uuid"]
        process.run(
            "try: n.nvmlDeviceGetUtilizationRates(parts[0])\nexcept n.NVMLError as error: refused = str(error)\n"
        )
        assert process.run("refused") == "Not Supported"
