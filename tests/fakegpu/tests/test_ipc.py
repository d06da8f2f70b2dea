"""IPC memory handles: opened memory is the exporter's."""

from pathlib import Path

import pytest
from tests.fakegpu.machine import CONTEXT_BYTES, MIB, Machine, Process, make_machine


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return make_machine(tmp_path, cuda="13.0")


def hand_over(exporter: Process, importer: Process) -> None:
    exporter.run("import ctypes; handle = ok(d.cuIpcGetMemHandle(p))")
    content = exporter.run("ctypes.string_at(handle.getPtr(), 64).hex()")
    importer.run("import ctypes; handle = d.CUipcMemHandle()")
    importer.run(f"ctypes.memmove(handle.getPtr(), bytes.fromhex('{content}'), 64)")


def test_the_opener_sees_the_data_and_pays_nothing(machine: Machine) -> None:
    with machine.user() as exporter, machine.user() as importer:
        exporter.run("p = ok(d.cuMemAlloc(5 << 20)); ok(d.cuMemsetD8(p, 9, 5 << 20))")
        hand_over(exporter, importer)
        importer.run("q = ok(d.cuIpcOpenMemHandle(handle, 1)); out = bytearray(5 << 20)")
        importer.run("ok(d.cuMemcpyDtoH(out, q, 5 << 20))")
        assert importer.run("out == bytes([9]) * (5 << 20)")
        importer.run("ok(d.cuMemsetD8(q, 7, 100))")
        exporter.run("out = bytearray(101); ok(d.cuMemcpyDtoH(out, p, 101))")
        assert exporter.run("out == bytes([7]) * 100 + bytes([9])")
        assert machine.held(importer) == {"context": CONTEXT_BYTES}
        assert machine.held(exporter) == {"context": CONTEXT_BYTES, "linear": 6 * MIB}
        assert machine.used_mib() == 206


def test_opening_again_gives_the_same_address_and_counts(machine: Machine) -> None:
    with machine.user() as exporter, machine.user() as importer:
        exporter.run("p = ok(d.cuMemAlloc(1000))")
        hand_over(exporter, importer)
        assert importer.run("int(ok(d.cuIpcOpenMemHandle(handle, 1))) == int(ok(d.cuIpcOpenMemHandle(handle, 1)))")
        importer.run("q = ok(d.cuIpcOpenMemHandle(handle, 1))")
        assert importer.run("[code(d.cuIpcCloseMemHandle(q)) for _ in range(4)]") == ["SUCCESS"] * 3 + ["INVALID_VALUE"]


def test_a_small_block_keeps_its_place_beside_others(machine: Machine) -> None:
    with machine.user() as exporter, machine.user() as importer:
        exporter.run("a, p = ok(d.cuMemAlloc(1000)), ok(d.cuMemAlloc(1000))")
        exporter.run("ok(d.cuMemsetD8(a, 1, 1000)); ok(d.cuMemsetD8(p, 2, 1000))")
        hand_over(exporter, importer)
        importer.run("q = ok(d.cuIpcOpenMemHandle(handle, 1)); out = bytearray(1000); ok(d.cuMemcpyDtoH(out, q, 1000))")
        assert importer.run("out == bytes([2]) * 1000")
        importer.run("ok(d.cuIpcCloseMemHandle(q))")
        exporter.run("ok(d.cuMemFree(p)); out = bytearray(1000); ok(d.cuMemcpyDtoH(out, a, 1000))")
        assert exporter.run("out == bytes([1]) * 1000")
        exporter.run("ok(d.cuMemFree(a))")
        assert machine.used_mib() == 200


def test_the_exporter_cannot_open_its_own(machine: Machine) -> None:
    with machine.user() as process:
        process.run("p = ok(d.cuMemAlloc(1000)); handle = ok(d.cuIpcGetMemHandle(p))")
        assert process.run("code(d.cuIpcOpenMemHandle(handle, 1))") == "INVALID_CONTEXT"
        process.run("import ctypes; ctypes.memset(handle.getPtr(), 0, 64)")
        assert process.run("code(d.cuIpcOpenMemHandle(handle, 1))") == "INVALID_VALUE"


def test_all_ends_at_zero_when_both_die(machine: Machine) -> None:
    with machine.user() as exporter, machine.user() as importer:
        exporter.run("p = ok(d.cuMemAlloc(1 << 20))")
        hand_over(exporter, importer)
        importer.run("q = ok(d.cuIpcOpenMemHandle(handle, 1))")
        exporter.kill()
        assert machine.used_mib() == 102  # the opener still holds it
        importer.kill()
        assert machine.used_mib() == 0
        assert list((machine.config.parent / "state.shared").iterdir()) == []
