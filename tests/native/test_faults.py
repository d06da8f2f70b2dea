"""Faults of the existing library, each as a test that it is not here; README.md says which is which."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakegpu.machine import Card, Machine, make_machine
from tests.native.client import Client, Server
from tests.native.conftest import SECOND_CARD
from tests.native.container import MIB, ROOT, Container, make_container

from isolator_core import names
from isolator_core.region import read_region
from isolator_testing.tools import require_root

LIMIT = 4096 * MIB
CONTEXT = 100 * MIB
NOBODY = 65534


@pytest.fixture(scope="module")
def container(tmp_path_factory: pytest.TempPathFactory) -> Container:
    """One for all: what a test leaves is gone when its processes are."""
    folder = tmp_path_factory.mktemp("container")
    machine = make_machine(folder, Card(), SECOND_CARD, cuda="13.0")
    machine.nvidia_smi("-L")
    return make_container(machine, folder / "vgpu", memory="4096m", devices="2")


@pytest.fixture(scope="module")
def server(container: Container) -> Iterator[Server]:
    made = Server(container.environment())
    yield made
    made.close()


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    made = server.client()
    yield made
    made.kill()


def begin(client: Client, faults: str = "") -> None:
    """Start CUDA with a context of the first card, and calls of the driver that fail."""
    client.run(f"os.environ['FAKEGPU_FAULTS'] = {faults!r}")
    assert client.run("start(), retain_primary(1, 0)") == ["SUCCESS"] * 2
    client.run("use(1)")


# In the driver they fail: what was charged before is given back, and nothing is left behind.
TAKES = {
    "cuMemAlloc_v2": "take(2, 64 << 20)",
    "cuMemAllocPitch_v2": "take_pitch(2, 1 << 20, 64)",
    "cuMemAllocManaged": "take_managed(2, 64 << 20)",
    "cuMemAllocAsync": "take_ordered(2, 64 << 20)",
    "cuMemAllocFromPoolAsync": "make_pool(3, 0, True), take_from(2, 64 << 20, 3)",
    "cuMemPoolCreate": "make_pool(2, 0, True)",
    "cuMemCreate": "create(2, 64 << 20, 0)",
    "cuArray3DCreate_v2": "take_array(2, 4096, 4096, 0, 0)",
    "cuMipmappedArrayCreate": "take_array(2, 4096, 4096, 0, 3)",
    "cuCtxCreate_v4": "make_context(2, 0)",
    "cuModuleLoadData": "load(2, 8 << 20)",
    "cuGraphLaunch": "make_graph(3, [64 << 20], True), launch_graph(3)",
}


@pytest.mark.parametrize("call", TAKES)
def test_what_fails_in_the_driver_is_not_charged(container: Container, client: Client, call: str) -> None:
    begin(client, f"{call}=error:999")
    answer = client.run(TAKES[call])
    assert (answer[-1] if isinstance(answer, list) else answer) == "UNKNOWN"
    assert client.run("info()") == [LIMIT - CONTEXT, LIMIT]
    assert container.total() == CONTEXT


# The same for what gives back: the driver still has it, so it stays charged.
GIVES = {
    "cuMemFree_v2": ("take(2, 64 << 20)", "free(2)"),
    "cuMemFreeAsync": ("take_ordered(2, 64 << 20)", "free_ordered(2)"),
    "cuMemRelease": ("create(2, 64 << 20, 0)", "release(2)"),
    "cuMemUnmap": ("create(2, 64 << 20, 0), map_handle(3, 2, 64 << 20), release(2)", "unmap(3)"),
    "cuArrayDestroy": ("take_array(2, 4096, 4096, 0, 0)", "free_array(2)"),
    "cuMipmappedArrayDestroy": ("take_array(2, 4096, 4096, 0, 3)", "free_array(2)"),
    "cuMemPoolDestroy": ("make_pool(3, 0, True), take_from(2, 64 << 20, 3)", "end_pool(3)"),
    "cuCtxDestroy_v2": ("make_context(2, 0)", "end_context(2)"),
    "cuModuleUnload": ("load(2, 8 << 20)", "unload(2)"),
}


@pytest.mark.parametrize("call", GIVES)
def test_what_the_driver_keeps_stays_charged(client: Client, call: str) -> None:
    take, give = GIVES[call]
    begin(client, f"{call}=error:999")
    client.run(take)
    client.run("use(1)")
    before = client.run("info()")
    assert before[0] < LIMIT - CONTEXT
    assert client.run(give) == "UNKNOWN"
    assert client.run("info()") == before


def test_without_a_context_the_driver_answers(client: Client) -> None:
    assert client.run("start()") == "SUCCESS"
    calls = ("take(2, 1000)", "take_managed(2, 1000)", "take_ordered(2, 1000)", "take_array(2, 100, 0, 0, 0)")
    assert client.run(", ".join(calls)) == ["INVALID_CONTEXT"] * len(calls)


NVML_FIRST = """
import json, os, pynvml as n
n.nvmlInit()
from cuda.bindings import driver as d
from tests.fakegpu.client import code, ok
ok(d.cuInit(0))
uuid = ok(d.cuDeviceGetUuid(0)).bytes.hex()
ok(d.cuCtxSetCurrent(ok(d.cuDevicePrimaryCtxRetain(0))))
answers = [code(d.cuMemAlloc(600 << 20)) for _ in range(8)]
free, total = ok(d.cuMemGetInfo())
cards = [n.nvmlDeviceGetHandleByIndex(index) for index in range(2)]
used = {n.nvmlDeviceGetUUID(card): n.nvmlDeviceGetMemoryInfo(card).used >> 20 for card in cards}
print(json.dumps([uuid, answers, (total - free) >> 20, used]))
"""


@pytest.mark.parametrize(
    ("visible", "order"),
    [("1", "FASTEST_FIRST"), ("1,0", "PCI_BUS_ID"), ("GPU-2", "PCI_BUS_ID"), ("0,1", "FASTEST_FIRST")],
)
def test_nvml_before_cuda_and_any_order_of_devices(container: Container, visible: str, order: str) -> None:
    printed = container.run(
        sys.executable, "-c", NVML_FIRST,
        PYTHONPATH=str(ROOT), CUDA_VISIBLE_DEVICES=visible, CUDA_DEVICE_ORDER=order,
    )  # fmt: skip
    uuid, answers, used, by_card = json.loads(printed)
    assert answers == ["SUCCESS"] * 6 + ["OUT_OF_MEMORY"] * 2
    assert used == 6 * 600 + 100
    held_by = {name.removeprefix("GPU-").replace("-", ""): held for name, held in by_card.items() if held}
    assert held_by == {uuid: used}


def test_pointers_tell_what_memory_they_are(client: Client) -> None:
    begin(client)
    assert client.run("take(2, 1000), take_managed(3, 1000)") == ["SUCCESS"] * 2
    attribute = "d.CUpointer_attribute.CU_POINTER_ATTRIBUTE_IS_MANAGED"
    assert client.run(f"[int(ok(d.cuPointerGetAttribute({attribute}, objects[n]))) for n in (2, 3)]") == [0, 1]


PRIVATE_TABLE = """
import ctypes
library = ctypes.CDLL("libcuda.so.1")
table = ctypes.c_void_p()
identity = (ctypes.c_char * 16)(*bytes.fromhex("6bd5fb6c5bf4e74a8987d93912fd9df9"))
print(library.cuGetExportTable(ctypes.byref(table), identity), library.cuInit(0))
print(library.cuGetExportTable(ctypes.byref(table), identity))
"""


def test_private_tables_are_the_drivers(container: Container) -> None:
    """Asked before anything else, as CUDA's runtime does, and answered as without the library."""
    command = [sys.executable, "-c", PRIVATE_TABLE]
    without = subprocess.run(command, env=container.machine.environment(), capture_output=True, text=True, check=True)
    assert container.run(*command) == without.stdout


LIKE_ANY_PROGRAM = """
import json, os, signal, sys
from cuda.bindings import driver as d
from tests.fakegpu.client import code, ok
os.umask(0o27)
ok(d.cuInit(0)), ok(d.cuCtxSetCurrent(ok(d.cuDevicePrimaryCtxRetain(0)))), ok(d.cuMemAlloc(1000))
inherited = [name for name in os.listdir("/proc/self/fd") if int(name) > 2 and os.path.exists(f"/proc/self/fd/{name}")
             and os.get_inheritable(int(name))]
print(json.dumps([os.umask(0o27), inherited]))
status = open("/proc/self/status").read()
fields = dict(line.split(":", 1) for line in status.splitlines())
caught = int(fields["SigCgt"], 16)
print(json.dumps([bool(caught >> number - 1 & 1) for number in (signal.SIGUSR1, signal.SIGUSR2)]))
print(int(fields["Threads"]))
sys.exit(7)
"""


def test_a_program_keeps_its_umask_signals_files_threads_and_status(container: Container) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIKE_ANY_PROGRAM],
        env=container.environment(PYTHONPATH=str(ROOT)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (7, "")
    assert [json.loads(line) for line in done.stdout.splitlines()] == [[0o27, []], [False, False], 1]


CAPPED = """
from cuda.bindings import driver as d
from tests.fakegpu.client import code, ok
ok(d.cuInit(0)), ok(d.cuCtxSetCurrent(ok(d.cuDevicePrimaryCtxRetain(0))))
print(code(d.cuMemAlloc(3 << 30)), code(d.cuMemAlloc(3 << 30)))
"""


def test_a_session_with_another_environment_is_limited_too(container: Container) -> None:
    """As after `su -`, sshd or cron; /etc/ld.so.preload stays, which LD_PRELOAD stands for here."""
    source = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{CAPPED}"
    kept = ("LD_PRELOAD", "LD_LIBRARY_PATH", "FAKEGPU_CONFIG")
    environment = {name: container.environment()[name] for name in kept}
    done = subprocess.run([sys.executable, "-c", source], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "SUCCESS OUT_OF_MEMORY\n"


def open_machine(container: Container) -> None:
    """Let every user reach the fake card and the library."""
    for path in container.machine.config.parent.glob("state*"):
        path.chmod(0o777 if path.is_dir() else 0o666)
    for folder in (container.machine.config.parent, *container.machine.config.parent.parents):
        if folder.stat().st_mode & 0o001 == 0:
            folder.chmod(folder.stat().st_mode | 0o055)


def test_a_second_user_of_the_container_shares_the_limit(container: Container, client: Client, server: Server) -> None:
    require_root()
    open_machine(container)
    begin(client)
    assert client.run("take(2, 3 << 30)") == "SUCCESS"
    other = server.client()
    try:
        other.run(f"os.setgid({NOBODY}); os.setuid({NOBODY})")
        begin(other)
        assert other.run("take(2, 1 << 30), take(3, 512 << 20)") == ["OUT_OF_MEMORY", "SUCCESS"]
        assert client.run("info()") == [512 * MIB - 2 * CONTEXT, LIMIT]
    finally:
        other.kill()


def test_users_share_a_directory_of_the_node_and_what_one_left_in_it(tmp_path: Path) -> None:
    """The kubelet makes it like what libsync keeps: mode 1777, so that nobody may remove another's file."""
    require_root()
    machine = make_machine(tmp_path, Card(), cuda="13.0")
    machine.nvidia_smi("-L")
    container = make_container(machine, tmp_path / "vgpu", memory="4096m", region="hostPath")
    folder = container.folder / names.CONTAINERS_DIR
    folder.chmod(0o1777)
    (folder / "usage.new").write_bytes(b"half made")
    (folder / "usage.new").chmod(0o666)
    os.chown(folder / "usage.new", NOBODY, NOBODY)
    open_machine(container)
    server = Server(container.environment())
    clients = [server.client() for _ in range(2)]
    try:
        for client, user in zip(clients, (NOBODY - 1, NOBODY - 2), strict=True):
            client.run(f"os.setgid({user}); os.setuid({user})")
            begin(client)
        assert clients[0].run("take(2, 3 << 30)") == "SUCCESS"
        assert clients[1].run("take(2, 1 << 30), take(3, 512 << 20)") == ["OUT_OF_MEMORY", "SUCCESS"]
        directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            assert len(read_region(directory).processes) == 2
        finally:
            os.close(directory)
    finally:
        for client in clients:
            client.kill()
        server.close()


def test_instances_of_one_card_are_limited_each_for_itself(tmp_path: Path) -> None:
    card = "GPU-11111111-2222-3333-4444-555555555555"
    instances = [Card(uuid=card, memory_mib=4864, extra={"mig-uuid": f"MIG-{n}1111111-0000-0000-0000-000000000000"})
                 for n in (1, 2)]  # fmt: skip
    machine: Machine = make_machine(tmp_path, *instances, cuda="13.0")
    container = make_container(machine, tmp_path / "vgpu", memory="1024m", devices="2")
    server = Server(container.environment())
    clients = [server.client() for _ in instances]
    try:
        for number, client in enumerate(clients, 1):
            client.run(f"os.environ['CUDA_VISIBLE_DEVICES'] = 'MIG-{number}1111111-0000-0000-0000-000000000000'")
            begin(client)
            assert client.run("take(2, 800 << 20), take(3, 800 << 20)") == ["SUCCESS", "OUT_OF_MEMORY"]
            assert client.run("info()")[1] == 1024 * MIB
    finally:
        for client in clients:
            client.kill()
        server.close()


def test_a_process_that_is_stopped_keeps_its_charge_and_nobody_waiting(client: Client, server: Server) -> None:
    begin(client)
    assert client.run("take(2, 3 << 30)") == "SUCCESS"
    other = server.client()
    os.kill(client.pid, signal.SIGSTOP)
    try:
        begin(other)
        assert other.run("take(2, 2 << 30)") == "OUT_OF_MEMORY"
    finally:
        os.kill(client.pid, signal.SIGCONT)
        other.kill()
