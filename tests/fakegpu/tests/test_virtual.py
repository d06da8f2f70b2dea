"""Virtual memory management: physical memory lives as long as anything refers to it."""

from pathlib import Path

import pytest
from tests.fakegpu.machine import CONTEXT_BYTES, MIB, Card, Machine, Process, make_machine

UNIT = 2 * MIB
PREPARE = """
prop = d.CUmemAllocationProp()
prop.type = d.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
prop.location.type = d.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
prop.location.id = 0
shared = d.CUmemAllocationProp()
shared.type = prop.type
shared.location.type = prop.location.type
shared.location.id = 0
shared.requestedHandleTypes = d.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
FD = shared.requestedHandleTypes
access = d.CUmemAccessDesc()
access.location.type = prop.location.type
access.location.id = 0
access.flags = d.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
SIZE = 4 << 20
"""


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return make_machine(tmp_path, cuda="13.0")


def virtual_bytes(machine: Machine, process: Process) -> int:
    return machine.held(process).get("virtual", 0)


def test_memory_is_freed_when_handle_and_mappings_are_gone(machine: Machine) -> None:
    with machine.user() as process:
        process.run(PREPARE)
        process.run("space = ok(d.cuMemAddressReserve(2 * SIZE, 0, 0, 0)); h = ok(d.cuMemCreate(SIZE, prop, 0))")
        assert virtual_bytes(machine, process) == 4 * MIB
        process.run("ok(d.cuMemMap(space, SIZE, 0, h, 0)); ok(d.cuMemMap(int(space) + SIZE, SIZE, 0, h, 0))")
        process.run("ok(d.cuMemRelease(h))")
        assert process.run("code(d.cuMemRelease(h))") == "INVALID_VALUE"
        assert virtual_bytes(machine, process) == 4 * MIB
        process.run("ok(d.cuMemUnmap(space, SIZE))")
        assert virtual_bytes(machine, process) == 4 * MIB
        process.run("ok(d.cuMemUnmap(int(space) + SIZE, SIZE)); ok(d.cuMemAddressFree(space, 2 * SIZE))")
        assert virtual_bytes(machine, process) == 0


def test_one_memory_under_two_addresses(machine: Machine) -> None:
    with machine.user() as process:
        process.run(PREPARE)
        process.run("space = int(ok(d.cuMemAddressReserve(2 * SIZE, 0, 0, 0))); h = ok(d.cuMemCreate(SIZE, prop, 0))")
        process.run("ok(d.cuMemMap(space, SIZE, 0, h, 0)); ok(d.cuMemMap(space + SIZE, SIZE, 0, h, 0))")
        assert process.run("code(d.cuMemsetD8(space, 5, 100))") == "INVALID_VALUE"  # no access yet
        process.run("ok(d.cuMemSetAccess(space, 2 * SIZE, [access], 1)); ok(d.cuMemsetD8(space + 7, 5, 100))")
        process.run("out = bytearray(100); ok(d.cuMemcpyDtoH(out, space + SIZE + 7, 100))")
        assert process.run("out == bytes([5]) * 100")


def test_a_copy_may_span_neighbouring_mappings(machine: Machine) -> None:
    with machine.user() as process:
        process.run(PREPARE)
        process.run("space = int(ok(d.cuMemAddressReserve(2 * SIZE, 0, 0, 0)))")
        process.run("a, b = ok(d.cuMemCreate(SIZE, prop, 0)), ok(d.cuMemCreate(SIZE, prop, 0))")
        process.run("ok(d.cuMemMap(space, SIZE, 0, a, 0)); ok(d.cuMemMap(space + SIZE, SIZE, 0, b, 0))")
        process.run("ok(d.cuMemSetAccess(space, 2 * SIZE, [access], 1))")
        assert process.run("code(d.cuMemsetD8(space, 1, 2 * SIZE)), code(d.cuMemsetD8(space, 1, 2 * SIZE + 1))") == [
            "SUCCESS",
            "INVALID_VALUE",
        ]
        assert process.run("code(d.cuMemUnmap(space, SIZE + (2 << 20)))") == "INVALID_VALUE"
        assert process.run("code(d.cuMemUnmap(space, 2 * SIZE))") == "SUCCESS"


def test_a_retained_handle_is_the_same_and_counts(machine: Machine) -> None:
    with machine.user() as process:
        process.run(PREPARE)
        process.run("space = int(ok(d.cuMemAddressReserve(SIZE, 0, 0, 0))); h = ok(d.cuMemCreate(SIZE, prop, 0))")
        process.run("ok(d.cuMemMap(space, SIZE, 0, h, 0))")
        assert process.run("int(ok(d.cuMemRetainAllocationHandle(space + 5))) == int(h)")
        process.run("ok(d.cuMemUnmap(space, SIZE)); ok(d.cuMemRelease(h))")
        assert virtual_bytes(machine, process) == 4 * MIB
        process.run("ok(d.cuMemRelease(h))")
        assert virtual_bytes(machine, process) == 0


@pytest.mark.parametrize(
    ("call", "result"),
    [
        ("d.cuMemCreate(SIZE + 1, prop, 0)", "INVALID_VALUE"),
        ("d.cuMemCreate(64 << 30, prop, 0)", "OUT_OF_MEMORY"),
        ("d.cuMemMap(space, SIZE, 0, 12345, 0)", "INVALID_VALUE"),
        ("d.cuMemMap(space + 4096, SIZE, 0, h, 0)", "INVALID_VALUE"),
        ("d.cuMemMap(space, 2 * SIZE, 0, h, 0)", "INVALID_VALUE"),
        ("d.cuMemMap(int(ok(d.cuMemAlloc(SIZE))), SIZE, 0, h, 0)", "INVALID_VALUE"),
        ("d.cuMemUnmap(space, SIZE)", "INVALID_VALUE"),
        ("d.cuMemAddressFree(space, SIZE)", "INVALID_VALUE"),
        ("d.cuMemRetainAllocationHandle(space)", "INVALID_VALUE"),
    ],
)
def test_wrong_arguments(machine: Machine, call: str, result: str) -> None:
    with machine.user() as process:
        process.run(PREPARE)
        process.run("space = int(ok(d.cuMemAddressReserve(2 * SIZE, 0, 0, 0))); h = ok(d.cuMemCreate(SIZE, prop, 0))")
        assert process.run(f"code({call})") == result


def test_host_memory_costs_the_device_nothing(machine: Machine) -> None:
    with machine.user() as process:
        process.run(PREPARE)
        process.run("prop.location.type = d.CUmemLocationType.CU_MEM_LOCATION_TYPE_HOST_NUMA")
        process.run("h = ok(d.cuMemCreate(SIZE, prop, 0))")
        assert machine.held(process) == {"context": CONTEXT_BYTES}


def test_an_exported_descriptor_keeps_the_memory(machine: Machine) -> None:
    with machine.user() as process:
        process.run(PREPARE)
        process.run("import os; h = ok(d.cuMemCreate(SIZE, shared, 0))")
        process.run("fd = ok(d.cuMemExportToShareableHandle(h, FD, 0)); ok(d.cuMemRelease(h))")
        assert virtual_bytes(machine, process) == 0  # nobody's, and still there:
        assert machine.books()["shared_bytes"] == 4 * MIB
        assert machine.used_mib() == 104
        process.run("os.close(fd)")
        assert machine.books()["shared_bytes"] == 0
        assert machine.used_mib() == 100


def test_another_process_imports_and_sees_the_data(machine: Machine) -> None:
    with machine.user() as exporter, machine.user() as importer:
        exporter.run(PREPARE)
        importer.run(PREPARE)
        exporter.run("h = ok(d.cuMemCreate(SIZE, shared, 0)); fd = ok(d.cuMemExportToShareableHandle(h, FD, 0))")
        exporter.run("space = int(ok(d.cuMemAddressReserve(SIZE, 0, 0, 0))); ok(d.cuMemMap(space, SIZE, 0, h, 0))")
        exporter.run("ok(d.cuMemSetAccess(space, SIZE, [access], 1)); ok(d.cuMemsetD8(space, 42, SIZE))")
        fd = exporter.run("fd")
        importer.run(f"import os; fd = os.open('/proc/{exporter.popen.pid}/fd/{fd}', os.O_RDWR)")
        importer.run(
            "import ctypes, array, socket\n"
            "h = ok(d.cuMemImportFromShareableHandle(fd, FD))\n"
            "space = int(ok(d.cuMemAddressReserve(SIZE, 0, 0, 0)))\n"
            "ok(d.cuMemMap(space, SIZE, 0, h, 0)); ok(d.cuMemSetAccess(space, SIZE, [access], 1))\n"
            "out = bytearray(SIZE); ok(d.cuMemcpyDtoH(out, space, SIZE))\n"
        )
        assert importer.run("out == bytes([42]) * SIZE")
        assert machine.held(exporter)["virtual"] == 4 * MIB
        assert machine.held(importer) == {"context": CONTEXT_BYTES}  # charged to the exporter only
        assert machine.used_mib() == 204


def test_memory_imported_where_it_comes_from_is_charged_once(machine: Machine) -> None:
    with machine.user() as process:
        process.run(PREPARE)
        process.run("import os; h = ok(d.cuMemCreate(SIZE, shared, 0))")
        process.run("fd = ok(d.cuMemExportToShareableHandle(h, FD, 0))")
        process.run("other = ok(d.cuMemImportFromShareableHandle(fd, FD)); os.close(fd); ok(d.cuMemRelease(h))")
        assert virtual_bytes(machine, process) == 4 * MIB
        process.run("ok(d.cuMemRelease(other))")
        assert virtual_bytes(machine, process) == 0
        assert machine.used_mib() == 100


def test_a_killed_exporter_leaves_the_memory_to_who_imported_it(machine: Machine) -> None:
    with machine.user() as importer:
        importer.run(PREPARE)
        with machine.user() as exporter:
            exporter.run(PREPARE)
            importer.run(
                "import socket, os, array\n"
                f"name = {str(machine.config.parent / 'socket')!r}\n"
                "server = socket.socket(socket.AF_UNIX); server.bind(name); server.listen()\n"
            )
            exporter.run(
                "import socket, array\n"
                f"client = socket.socket(socket.AF_UNIX); client.connect({str(machine.config.parent / 'socket')!r})\n"
                "h = ok(d.cuMemCreate(SIZE, shared, 0)); fd = ok(d.cuMemExportToShareableHandle(h, FD, 0))\n"
                "socket.send_fds(client, [b'x'], [fd])\n"
            )
            importer.run(
                "fd = socket.recv_fds(server.accept()[0], 1, 1)[1][0]\n"
                "h = ok(d.cuMemImportFromShareableHandle(fd, FD)); os.close(fd)\n"
            )
            exporter.kill()
        assert machine.used_mib() == 104
        importer.run("ok(d.cuMemRelease(h))")
        assert machine.used_mib() == 100


def test_multicast_holds_what_is_bound_to_it(tmp_path: Path) -> None:
    hopper = {"compute-capability": "9.0"}
    cards = [Card(extra=hopper), Card(uuid="GPU-22222222-2222-3333-4444-555555555555", extra=hopper)]
    machine = make_machine(tmp_path, *cards, cuda="13.0")
    with machine.user() as process:
        process.run(PREPARE)
        process.run(
            "object = d.CUmulticastObjectProp(); object.numDevices = 2; object.size = SIZE\n"
            "m = ok(d.cuMulticastCreate(object)); h = ok(d.cuMemCreate(SIZE, prop, 0))\n"
        )
        assert process.run("code(d.cuMulticastBindMem(m, 0, h, 0, SIZE, 0))") == "ILLEGAL_STATE"
        process.run("ok(d.cuMulticastAddDevice(m, 0)); ok(d.cuMulticastAddDevice(m, 1))")
        process.run("ok(d.cuMulticastBindMem(m, 0, h, 0, SIZE, 0)); ok(d.cuMemRelease(h))")
        assert virtual_bytes(machine, process) == 4 * MIB
        process.run("ok(d.cuMulticastUnbind(m, 0, 0, SIZE))")
        assert virtual_bytes(machine, process) == 0
        process.run("h = ok(d.cuMemCreate(SIZE, prop, 0)); ok(d.cuMulticastBindMem(m, 0, h, 0, SIZE, 0))")
        process.run("ok(d.cuMemRelease(h)); ok(d.cuMemRelease(m))")
        assert virtual_bytes(machine, process) == 0


def test_an_older_card_has_no_multicast(machine: Machine) -> None:
    with machine.user() as process:
        process.run("object = d.CUmulticastObjectProp(); object.numDevices = 1; object.size = 2 << 20")
        assert process.run("code(d.cuMulticastCreate(object))") == "NOT_SUPPORTED"


def test_external_memory_is_never_charged(machine: Machine) -> None:
    with machine.user() as exporter, machine.user() as importer:
        exporter.run(PREPARE)
        exporter.run("h = ok(d.cuMemCreate(SIZE, shared, 0)); fd = ok(d.cuMemExportToShareableHandle(h, FD, 0))")
        importer.run(
            "import os\n"
            f"fd = os.open('/proc/{exporter.popen.pid}/fd/{exporter.run('fd')}', os.O_RDWR)\n"
            "desc = d.CUDA_EXTERNAL_MEMORY_HANDLE_DESC()\n"
            "desc.type = d.CUexternalMemoryHandleType.CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD\n"
            "desc.handle.fd = fd; desc.size = 4 << 20\n"
            "ext = ok(d.cuImportExternalMemory(desc))\n"
            "buffer = d.CUDA_EXTERNAL_MEMORY_BUFFER_DESC(); buffer.size = 4 << 20\n"
            "p = ok(d.cuExternalMemoryGetMappedBuffer(ext, buffer)); ok(d.cuMemsetD8(p, 1, 4 << 20))\n"
        )
        assert machine.held(importer) == {"context": CONTEXT_BYTES}
        assert importer.run("code(d.cuMemFree(p)), code(d.cuDestroyExternalMemory(ext))") == ["SUCCESS", "SUCCESS"]
        assert machine.held(exporter)["virtual"] == 4 * MIB
