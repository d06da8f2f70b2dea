"""cuMemAlloc and its queries, by NVIDIA's Python bindings."""

from pathlib import Path

import pytest
from tests.fakegpu.machine import CONTEXT_BYTES, MIB, Card, Machine, make_machine

CAPACITY = 15360 * MIB
UNIT = 2 * MIB


def test_what_is_allocated_is_missing_from_free(machine: Machine) -> None:
    with machine.user() as process:
        assert process.run("ok(d.cuMemGetInfo())") == [CAPACITY - CONTEXT_BYTES, CAPACITY]
        process.run("p = ok(d.cuMemAlloc(3 << 30))")
        assert process.run("ok(d.cuMemGetInfo())") == [CAPACITY - CONTEXT_BYTES - (3 << 30), CAPACITY]
        process.run("ok(d.cuMemFree(p))")
        assert process.run("ok(d.cuMemGetInfo())") == [CAPACITY - CONTEXT_BYTES, CAPACITY]


@pytest.mark.parametrize(
    ("size", "taken"),
    [(1, UNIT), (MIB, UNIT), (MIB + 1, UNIT), (UNIT, UNIT), (UNIT + 1, 2 * UNIT), (5 * MIB, 3 * UNIT)],
)
def test_the_card_is_taken_in_units_of_two_mib(machine: Machine, size: int, taken: int) -> None:
    with machine.user() as process:
        before = process.run("ok(d.cuMemGetInfo())[0]")
        process.run(f"p = ok(d.cuMemAlloc({size}))")
        assert before - process.run("ok(d.cuMemGetInfo())[0]") == taken


def test_small_blocks_share_a_unit_until_the_last_is_freed(machine: Machine) -> None:
    with machine.user() as process:
        before = process.run("ok(d.cuMemGetInfo())[0]")
        process.run("blocks = [ok(d.cuMemAlloc(1000)) for _ in range(2048)]")
        assert process.run("len({int(block) for block in blocks})") == 2048
        assert before - process.run("ok(d.cuMemGetInfo())[0]") == UNIT
        process.run("more = ok(d.cuMemAlloc(1000))")
        assert before - process.run("ok(d.cuMemGetInfo())[0]") == 2 * UNIT
        process.run("[ok(d.cuMemFree(block)) for block in blocks]")
        assert before - process.run("ok(d.cuMemGetInfo())[0]") == UNIT


def test_a_full_card_refuses_and_keeps_what_it_had(machine: Machine) -> None:
    with machine.user() as process:
        process.run("p = ok(d.cuMemAlloc(14 << 30))")
        assert process.run("code(d.cuMemAlloc(2 << 30))") == "OUT_OF_MEMORY"
        assert process.run("ok(d.cuMemGetInfo())[0]") == CAPACITY - CONTEXT_BYTES - (14 << 30)
        process.run("ok(d.cuMemFree(p))")
        assert process.run("code(d.cuMemAlloc(2 << 30))") == "SUCCESS"


def test_data_is_real_and_blocks_do_not_overlap(machine: Machine) -> None:
    with machine.user() as process:
        process.run("blocks = [ok(d.cuMemAlloc(size)) for size in (512, 700, 1 << 20, 3 << 20)]")
        process.run("[ok(d.cuMemsetD8(block, number, 512)) for number, block in enumerate(blocks)]")
        process.run("out = bytearray(512)")
        for number in range(4):
            process.run(f"ok(d.cuMemcpyDtoH(out, blocks[{number}], 512))")
            assert process.run("out == bytes([out[0]]) * 512 and out[0]") == number
        process.run("ok(d.cuMemcpyHtoD(blocks[0], b'fake gpu', 8)), ok(d.cuMemcpyDtoD(blocks[3], blocks[0], 8))")
        process.run("ok(d.cuMemcpyDtoH(out, blocks[3], 8))")
        assert process.run("bytes(out[:8])") == "fake gpu"


def test_the_range_of_a_block_is_what_was_asked_for(machine: Machine) -> None:
    with machine.user() as process:
        process.run("p = ok(d.cuMemAlloc(3 * (1 << 20) + 5)), ok(d.cuMemAlloc(700))")
        assert process.run("ok(d.cuMemGetAddressRange(int(p[0]) + 9))") == [process.run("p[0]"), 3 * MIB + 5]
        assert process.run("ok(d.cuMemGetAddressRange(int(p[1]) + 699))") == [process.run("p[1]"), 700]
        assert process.run("code(d.cuMemGetAddressRange(int(p[1]) + 700))") == "NOT_FOUND"


@pytest.mark.parametrize(
    ("call", "result"),
    [
        ("d.cuMemAlloc(0)", "INVALID_VALUE"),
        ("d.cuMemAlloc(1 << 60)", "OUT_OF_MEMORY"),
        ("d.cuMemFree(12345)", "INVALID_VALUE"),
        ("d.cuMemFree(int(p) + 512)", "INVALID_VALUE"),
        ("d.cuMemcpyDtoH(bytearray(4097), p, 4097)", "INVALID_VALUE"),
        ("d.cuMemcpyHtoD(int(p) + 4000, bytes(97), 97)", "INVALID_VALUE"),
        ("d.cuMemsetD32(int(p) + 1, 0, 1)", "INVALID_VALUE"),
    ],
)
def test_wrong_arguments(machine: Machine, call: str, result: str) -> None:
    with machine.user() as process:
        process.run("p = ok(d.cuMemAlloc(4096))")
        assert process.run(f"code({call})") == result


def test_a_second_free_is_refused(machine: Machine) -> None:
    with machine.user() as process:
        process.run("p = [ok(d.cuMemAlloc(size)) for size in (100, 100, 4 << 20, 4 << 20)]")
        for index in (0, 2, 3, 1):
            assert process.run(f"code(d.cuMemFree(p[{index}]))") == "SUCCESS"
            assert process.run(f"code(d.cuMemFree(p[{index}]))") == "INVALID_VALUE"


def test_a_freed_unit_inside_a_longer_free_run_is_no_block(machine: Machine) -> None:
    with machine.user() as process:
        process.run("p = [ok(d.cuMemAlloc(4 << 20)) for _ in range(5)]")
        process.run("[ok(d.cuMemFree(p[i])) for i in (1, 3, 2, 0, 4)]")
        for index in range(5):
            assert process.run(f"code(d.cuMemFree(p[{index}]))") == "INVALID_VALUE"
            assert process.run(f"code(d.cuMemGetAddressRange(int(p[{index}]) + (2 << 20)))") == "NOT_FOUND"


def test_random_sizes_end_where_they_began(machine: Machine) -> None:
    with machine.user() as process:
        before = process.run("ok(d.cuMemGetInfo())[0]")
        process.run(
            "import random\n"
            "chooser = random.Random(7)\n"
            "held = {}\n"
            "for _ in range(20000):\n"
            "    if held and chooser.random() < 0.5:\n"
            "        address = chooser.choice(list(held))\n"
            "        assert [*map(int, ok(d.cuMemGetAddressRange(address)))] == [address, held.pop(address)]\n"
            "        ok(d.cuMemFree(address))\n"
            "    else:\n"
            "        size = int(2 ** chooser.uniform(0, 24))\n"
            "        address = int(ok(d.cuMemAlloc(size)))\n"
            "        assert all(address + size <= other or other + held[other] <= address for other in held)\n"
            "        held[address] = size\n"
            "    if len(held) > 100:\n"
            "        for address in list(held): ok(d.cuMemFree(address))\n"
            "        held = {}\n"
            "for address in held: ok(d.cuMemFree(address))\n"
        )
        assert process.run("ok(d.cuMemGetInfo())[0]") == before


def test_reserved_memory_is_cudas_loss_and_not_nvmls(tmp_path: Path) -> None:
    machine = make_machine(tmp_path, Card(extra={"reserved-mib": "400"}))
    with machine.user() as process:
        assert process.run("ok(d.cuDeviceTotalMem(dev))") == CAPACITY - 400 * MIB
        process.run("n.nvmlInit(); card = n.nvmlDeviceGetHandleByIndex(0)")
        process.run("first = n.nvmlDeviceGetMemoryInfo(card)")
        process.run("second = n.nvmlDeviceGetMemoryInfo(card, version=n.nvmlMemory_v2)")
        assert process.run("first.total, first.used") == [CAPACITY, 400 * MIB + CONTEXT_BYTES]
        assert process.run("second.total, second.reserved, second.used") == [CAPACITY, 400 * MIB, CONTEXT_BYTES]
        free = CAPACITY - 400 * MIB - CONTEXT_BYTES
        assert process.run("first.free, second.free, ok(d.cuMemGetInfo())[0]") == [free, free, free]


def test_destroying_a_context_frees_what_was_allocated_in_it(machine: Machine) -> None:
    with machine.user() as process:
        before = process.run("ok(d.cuMemGetInfo())[0]")
        process.run("kept = ok(d.cuMemAlloc(3 << 20))")
        process.run("other = ok(d.cuCtxCreate(None, 0, dev))")
        process.run("lost = [ok(d.cuMemAlloc(size)) for size in (100, 5 << 20, 100, 1 << 20)]")
        process.run("ok(d.cuCtxDestroy(other))")
        assert before - process.run("ok(d.cuMemGetInfo())[0]") == 2 * UNIT
        assert process.run("code(d.cuMemFree(lost[1])), code(d.cuMemFree(kept))") == ["INVALID_VALUE", "SUCCESS"]


def test_reset_of_the_primary_context_frees_everything_in_it(machine: Machine) -> None:
    with machine.user() as process:
        process.run("p = ok(d.cuMemAlloc(3 << 30)), ok(d.cuMemAlloc(10))")
        process.run("ok(d.cuDevicePrimaryCtxReset(dev))")
        assert process.run("code(d.cuMemGetInfo())") == "CONTEXT_IS_DESTROYED"
        assert machine.used_mib() == 0
        assert process.run("ok(d.cuDevicePrimaryCtxGetState(dev))[1]") == 0
