"""What the steerer writes, and into what: real files, processes that hold real locks, and tenants that mean harm."""

import json
import os
import signal
import struct
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isolator_core.region import Kind, RegionError, open_beneath
from isolator_monitor.orders import AGAIN_NS, LEAST_PAUSES, Order
from isolator_monitor.plan import Plan, Steered
from isolator_monitor.steer import AVOID_NS, LOOK_NS, REST_NS, Steering
from isolator_monitor.steered import mark, open_region
from isolator_monitor.targets import Place, Root
from isolator_testing.regions import END, EXTENSION, Card, RegionImage, Slot, Use, hold, write
from isolator_testing.tools import require, require_root

UUID = "GPU-00000000-0000-0000-0000-000000000001"
OTHER = "GPU-00000000-0000-0000-0000-000000000002"
IMAGE = RegionImage([Card(UUID, 1 << 30)], {slot: Slot(100 + slot, [Use(buffer=1)]) for slot in range(4)})
WAIT_SECONDS = 30.0
MILLISECOND = 1_000_000
BEGIN = 10**15
RECENT = 2_008_904
MARK = 0xC8C7AE1


def u64(path: Path, offset: int) -> int:
    with path.open("rb") as file:
        file.seek(offset)
        return int(struct.unpack("<Q", file.read(8))[0])


def put(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def host(path: Path, slot: int) -> int:
    """The PID that a slot's process would believe; a slot of these images has start time, image and namespace 1."""
    with path.open("rb") as file:
        file.seek(EXTENSION + 12_288 + 128 * slot)
        record = file.read(128)
    pid, start_time, image = *struct.unpack_from("<IQ", record, 4), *struct.unpack_from("<Q", record, 24)
    told = struct.unpack_from("<Q", record, 72)[0]
    return int(told & 0xFFFFFFFF) if told >> 32 == mark(pid, start_time, image) else 0


def order_of(path: Path, device: int = 0) -> tuple[Order, int]:
    word = u64(path, EXTENSION + 4096 + 512 * device + 136)
    return Order(word & 7), word & ~7


def spend(path: Path, nanoseconds: int, device: int = 0) -> None:
    """The library without a cap: what is paid was refilled."""
    at = EXTENSION + 4096 + 512 * device + 208
    put(path, at, struct.pack("<Q", u64(path, at) + nanoseconds))


def tell(directory: Path) -> dict[int, int]:
    with open_beneath(directory) as descriptor:
        region = open_region(descriptor)
    region.close()
    return dict(region.owners)


def steered(name: str, priority: int = 1, *cards: str) -> Steered:
    return Steered(name, "main", (Place(Root.REGIONS, (f"{name}_main",)),), priority, cards)


def test_each_process_is_told_its_pid_and_nothing_else_is_written(tmp_path: Path) -> None:
    region = write(tmp_path, IMAGE.v1())
    before = region.read_bytes()
    with hold(tmp_path / "usage.lock", [0, 2, 3]) as owners:
        assert tell(tmp_path) == owners
        assert [host(region, slot) for slot in range(4)] == [owners[0], 0, owners[2], owners[3]]
        after = region.read_bytes()
        hosts = [range(EXTENSION + 12_288 + 128 * slot + 72, EXTENSION + 12_288 + 128 * slot + 80) for slot in range(4)]
        assert all(any(at in word for word in hosts) for at in range(END) if before[at] != after[at])
        written = region.stat().st_mtime_ns
        assert tell(tmp_path) == owners
        assert region.stat().st_mtime_ns == written


def test_what_is_written_of_one_process_is_not_believed_by_the_next_in_its_slot(tmp_path: Path) -> None:
    """At every moment between the steerer's steps the slot may change hands."""
    region = write(tmp_path, IMAGE.v1())
    with hold(tmp_path / "usage.lock", [0]) as owners:
        tell(tmp_path)
        assert host(region, 0) == owners[0]
        for pid, start_time, image in ((101, 1, 1), (100, 2, 1), (100, 1, 2)):
            put(region, EXTENSION + 12_288 + 4, struct.pack("<IQ", pid, start_time))
            put(region, EXTENSION + 12_288 + 24, struct.pack("<Q", image))
            assert host(region, 0) == 0
            tell(tmp_path)
            assert host(region, 0) == owners[0]


def test_a_slot_that_changes_hands_while_the_kernel_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    region = write(tmp_path, IMAGE.v1())

    def retaken(*_: object) -> dict[int, int]:
        put(region, EXTENSION + 12_288 + 4, struct.pack("<IQ", 555, 9))
        return {0: 4711}

    monkeypatch.setattr("isolator_monitor.steered.held_slots", retaken)
    tell(tmp_path)
    assert u64(region, EXTENSION + 12_288 + 72) & 0xFFFFFFFF == 4711
    assert host(region, 0) == 0


def test_a_mark_is_what_the_page_says() -> None:
    """The library has the same three; 0x9e3779b9 is the upper half of k."""
    assert mark(0, 0, 0) == 0
    assert mark(1, 0, 0) == 0x9E3779B9
    assert mark(4711, 123456789, 0xFEDCBA9876543210) == MARK


@pytest.mark.parametrize(
    ("spoil", "kind"),
    [
        (lambda path: path.unlink(), Kind.ABSENT),
        (lambda path: path.rename(path.with_name("x")) and path.symlink_to("x"), Kind.LINK),
        (lambda path: path.with_name("x").hardlink_to(path), Kind.LINK),
        (lambda path: path.unlink() or os.mkfifo(path), Kind.NOT_REGULAR),
        (lambda path: path.unlink() or path.mkdir(), Kind.NOT_REGULAR),
        (lambda path: os.truncate(path, END - 1), Kind.SIZE),
        (lambda path: os.truncate(path, END + 1), Kind.SIZE),
        (lambda path: put(path, 0, b"\0"), Kind.MAGIC),
        (lambda path: put(path, EXTENSION, b"\0"), Kind.MAGIC),
        (lambda path: put(path, 8, b"\1"), Kind.VERSION),
        (lambda path: put(path, EXTENSION + 8, b"\2"), Kind.VERSION),
        (lambda path: put(path, 56, b"\x11"), Kind.COUNT),
        (lambda path: put(path, 64, b"<img>"), Kind.STRING),
        (lambda path: put(path, 2_008_896, struct.pack("<i", 1025)), Kind.COUNT),
        (lambda path: put(path, 2_008_896, struct.pack("<i", -1)), Kind.COUNT),
    ],
)
def test_what_is_no_region_is_not_written(tmp_path: Path, spoil: Callable[[Path], object], kind: Kind) -> None:
    region = write(tmp_path / "u_main", IMAGE.v1())
    with hold(region.with_name("usage.lock"), [0]):
        spoil(region)
        files = [path for path in region.parent.iterdir() if path.is_file()]
        before = {path: path.read_bytes() for path in files}
        with pytest.raises(RegionError) as caught:
            tell(region.parent)
        assert caught.value.kind == kind
        assert {path: path.read_bytes() for path in files} == before


def test_a_file_that_is_cut_meanwhile_costs_its_own_container(tmp_path: Path) -> None:
    region = write(tmp_path, IMAGE.v1())
    with open_beneath(tmp_path) as descriptor:
        opened = open_region(descriptor)
    os.truncate(region, 0)
    with pytest.raises(RegionError, match="changed"):
        opened.paid(0)
    opened.give(0, Order.HOLD, BEGIN)
    opened.close()
    assert region.stat().st_size == EXTENSION + 4096 + 136 + 16


WRITTEN = (
    [(EXTENSION + 12_288 + 128 * slot + 72, 8) for slot in range(1024)]
    + [(EXTENSION + 4096 + 512 * device + 136, 16) for device in range(16)]
    + [(1856 + 1960 * slot + 1160 + 48 * device + 16, 8) for slot in range(1024) for device in range(16)]
    + [(RECENT, 4)]
)
"""All that the steerer ever writes, as offset and size."""
PLACES = (0, 4, 8, 56, 64, 160, 2_008_896, RECENT, EXTENSION, EXTENSION + 8, EXTENSION + 12_288, EXTENSION + 12_420)


@given(spoilt=st.lists(st.tuples(st.sampled_from(PLACES), st.binary(min_size=1, max_size=8)), max_size=6))
@settings(max_examples=30, deadline=None)
def test_whatever_a_region_says_only_those_words_are_written(
    tmp_path_factory: pytest.TempPathFactory, spoilt: list[tuple[int, bytes]]
) -> None:
    directory = tmp_path_factory.mktemp("region")
    region = write(directory, IMAGE.v1())
    for offset, data in spoilt:
        put(region, offset, data)
    before = bytearray(region.read_bytes())
    with hold(directory / "usage.lock", [0, 2]) as owners, suppress(RegionError), open_beneath(directory) as descriptor:
        opened = open_region(descriptor)
        assert len(opened.uuids) <= 16
        for device in range(len(opened.uuids)):
            opened.paid(device)
            opened.show_busy(device, dict.fromkeys(owners.values(), 42))
            opened.give(device, Order.HOLD, BEGIN, BEGIN)
        opened.let_rest()
        opened.close()
    after = bytearray(region.read_bytes())
    assert len(after) == END
    for offset, size in WRITTEN:
        before[offset : offset + size] = after[offset : offset + size]
    assert before == after


class Scene:
    """Containers below one root, and a steerer for them in a time of the test's."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.steering = Steering({Root.REGIONS: (root,)})
        self.now = BEGIN

    def region(self, name: str, *uuids: str) -> Path:
        image = RegionImage([Card(uuid, 1 << 30) for uuid in uuids or (UUID,)], {0: Slot(1, [Use(1)])})
        return write(self.root / f"{name}_main", image.v1())

    def plan(self, *containers: Steered, **busy: dict[int, int]) -> None:
        self.steering.adopt(Plan(containers, {UUID: busy["busy"]} if busy else {}))

    def after(self, milliseconds: float) -> int:
        self.now += round(milliseconds * MILLISECOND)
        return self.steering.step(self.now)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_others_give_way_while_one_of_priority_0_works(scene: Scene) -> None:
    high, low, elsewhere = scene.region("high"), scene.region("low"), scene.region("elsewhere", OTHER)
    scene.plan(steered("high", 0, UUID), steered("low"), steered("elsewhere"))
    with hold(high.with_name("usage.lock"), [0]), hold(low.with_name("usage.lock"), [0]):
        scene.after(0)
        assert order_of(low) == (Order.BOUNDED, scene.now & ~7)
        spend(high, 10 * MILLISECOND)
        scene.after(0.5)
        assert order_of(low) == (Order.HOLD, scene.now & ~7)
        scene.after(10.9)
        assert order_of(low)[0] == Order.HOLD
        scene.after(0.2)
        assert order_of(low)[0] == Order.SHORT
        given = order_of(low)[1]
        scene.after(1)
        assert order_of(low)[1] == given
        scene.after(AGAIN_NS / MILLISECOND)
        assert order_of(low)[1] == scene.now & ~7
        scene.after(1000)
        assert order_of(low)[0] == Order.BOUNDED
        assert order_of(high) == order_of(elsewhere) == (Order.NONE, 0)
        scene.steering.close()
    assert order_of(low) == (Order.NONE, 0)


def test_others_are_told_how_long_the_card_will_be_free(scene: Scene) -> None:
    high, low = scene.region("high"), scene.region("low")
    free_until = EXTENSION + 4096 + 144
    scene.plan(steered("high", 0, UUID), steered("low"))
    with hold(high.with_name("usage.lock"), [0]), hold(low.with_name("usage.lock"), [0]):
        scene.after(0)
        for _ in range(LEAST_PAUSES):
            spend(high, 10 * MILLISECOND)
            scene.after(1)
            scene.after(49)
            assert u64(low, free_until) == 0
        spend(high, 10 * MILLISECOND)
        scene.after(1)
        begun = scene.now
        scene.after(12)
        # Seen 1 ms late, it comes 40 ms after it was done, an eighth of which is left as a margin.
        assert u64(low, free_until) == begun + 45 * MILLISECOND
        assert order_of(low)[0] == Order.SHORT


def test_it_looks_often_only_while_someone_works(scene: Scene) -> None:
    high, low = scene.region("high"), scene.region("low")
    scene.plan(steered("high", 0, UUID), steered("low"))
    assert scene.after(0) - scene.now == LOOK_NS
    with hold(high.with_name("usage.lock"), [0]), hold(low.with_name("usage.lock"), [0]):
        scene.after(1000)
        assert scene.after(1) - scene.now == 20 * MILLISECOND
        spend(high, 1)
        assert scene.after(20) - scene.now == MILLISECOND + 1  # what holds others is not looked at before it ends
        assert scene.after(2) - scene.now == MILLISECOND // 2
        for _ in range(11):
            scene.after(1000)
        assert scene.after(1) - scene.now == 20 * MILLISECOND


@pytest.mark.parametrize("ended", ["high", "low", "plan"])
def test_orders_end_with_those_for_whom_they_are(scene: Scene, ended: str) -> None:
    high, low = scene.region("high"), scene.region("low")
    both = steered("high", 0, UUID), steered("low")
    scene.plan(*both)
    with hold(low.with_name("usage.lock"), [0]):
        with hold(high.with_name("usage.lock"), [0]):
            scene.after(0)
            spend(high, 10**9)
            scene.after(1)
            assert order_of(low)[0] == Order.HOLD
            if ended == "plan":
                scene.plan(both[1])
                scene.after(LOOK_NS / MILLISECOND)
                assert order_of(low)[0] == Order.NONE
        if ended == "high":
            scene.after(LOOK_NS / MILLISECOND)
            assert order_of(low)[0] == Order.NONE
    if ended == "low":
        scene.after(LOOK_NS / MILLISECOND)
        assert scene.steering._cards == {}


def test_a_card_that_only_the_tenant_claims_makes_nobody_give_way(scene: Scene) -> None:
    high, low = scene.region("high", OTHER, UUID), scene.region("low")
    scene.plan(steered("high", 0, OTHER), steered("low"))
    with hold(high.with_name("usage.lock"), [0]), hold(low.with_name("usage.lock"), [0]):
        scene.after(0)
        for device in (0, 1):
            spend(high, 10**10, device)
        scene.after(1)
        assert order_of(low) == (Order.NONE, 0)


def test_hamis_words_are_kept_true(scene: Scene) -> None:
    region = scene.region("one", UUID, OTHER)
    sm_util = [1856 + 1160 + 48 * device + 16 for device in (0, 1)]
    for at in sm_util:
        put(region, at, struct.pack("<Q", 77))
    with hold(region.with_name("usage.lock"), [0]) as owners:
        scene.plan(steered("one"), busy={owners[0]: 42, 1: 99})
        scene.after(0)
        assert [u64(region, at) for at in sm_util] == [42, 77]  # of the other card nothing is known
        scene.plan(steered("one"), busy={})
        scene.after(LOOK_NS / MILLISECOND)
        assert u64(region, sm_util[0]) == 0
    seen = [u64(region, RECENT) & 0xFFFFFFFF]
    for _ in range(3):
        scene.after(REST_NS / MILLISECOND)
        seen.append(u64(region, RECENT) & 0xFFFFFFFF)
    assert seen == [1, 0, 0, 0]
    put(region, RECENT, struct.pack("<i", -1))
    scene.after(REST_NS / MILLISECOND)
    assert u64(region, RECENT) & 0xFFFFFFFF == 0xFFFFFFFF  # that is another monitor's


def test_a_tenant_that_fails_costs_itself_alone(scene: Scene) -> None:
    good, bad = scene.region("good"), scene.region("bad")
    put(bad, 0, b"\0\0\0\0")
    scene.plan(steered("absent"), steered("bad"), steered("good"))
    with hold(good.with_name("usage.lock"), [0]) as owners:
        scene.after(0)
        assert host(good, 0) == owners[0]
        report = scene.steering.adopt(Plan())
        assert (report.told, report.failures) == (1, {"magic": 1})


def test_a_tenant_with_too_many_locks_is_left_alone_for_a_while(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    region = scene.region("one")
    scene.plan(steered("one"))
    with hold(region.with_name("usage.lock"), [0]) as owners:
        with monkeypatch.context() as patched:
            patched.setattr("isolator_monitor.steered._LOCKS_SECONDS", -1.0)
            scene.after(0)
        scene.after(LOOK_NS / MILLISECOND)
        assert host(region, 0) == 0
        scene.after(AVOID_NS / MILLISECOND)
        assert host(region, 0) == owners[0]
    assert scene.steering.adopt(Plan()).failures == {"locks": 1}


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_descriptors_do_not_add_up(scene: Scene) -> None:
    names = [f"u{index}" for index in range(8)]
    for name in names:
        scene.region(name)
    scene.plan(*map(steered, names))
    scene.after(0)
    count = descriptors()
    for _ in range(20):
        scene.after(LOOK_NS / MILLISECOND)
    assert descriptors() == count
    scene.steering.close()
    assert descriptors() == count - len(names)


def isolator_monitor(*arguments: str | Path, wrapper: Sequence[str] = ()) -> subprocess.Popen[str]:
    command = [*wrapper, sys.executable, "-m", "isolator_monitor", *map(str, arguments)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def end(*processes: subprocess.Popen[str]) -> None:
    for process in processes:
        process.kill()
        process.wait()
        assert process.stderr
        process.stderr.close()


def events(process: subprocess.Popen[str], *wanted: str) -> None:
    assert process.stderr
    left = set(wanted)
    for entry in map(json.loads, process.stderr):
        left.discard(entry["event"])
        if not left:
            return
    raise AssertionError(f"it ended without {left}")


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def write_pods(path: Path, *names: str) -> Path:
    items = [
        {"metadata": {"name": name, "namespace": "team", "uid": name}, "spec": {"containers": [{"name": "main"}]}}
        for name in names
    ]
    path.write_text(json.dumps({"kind": "PodList", "items": items}))
    return path


@pytest.mark.slow
def test_beside_a_server_while_a_tenant_does_its_worst(tmp_path: Path) -> None:
    """The honest one has its PID, whatever the steerer is led to write is in the hostile one's own directory."""
    root = tmp_path / "regions"
    honest = write(root / "honest_main", IMAGE.v1())
    write(root / "hostile_main", IMAGE.v1())
    outside = tmp_path / "outside"
    outside.write_bytes(bytes(IMAGE.v1()))
    before, untouched = honest.read_bytes(), outside.read_bytes()
    pods = write_pods(tmp_path / "pods.json", "honest", "hostile")
    socket = tmp_path / "steerer.sock"
    server = isolator_monitor(
        *("serve", "--pods-file", pods, "--region-root", root, "--listen-address", "127.0.0.1", "--listen-port", "0"),
        *("--update-interval", "0.05", "--steerer-socket", socket),
    )
    steerer = isolator_monitor("steer", "--region-root", root, "--steerer-socket", socket)
    try:
        events(steerer, "server_connected")
        assert steerer.stderr
        threading.Thread(target=steerer.stderr.read, daemon=True).start()
        with hold(honest.with_name("usage.lock"), [3]) as owners:
            tenant = subprocess.Popen(
                [sys.executable, Path(__file__).with_name("hostile_tenant.py"), root / "hostile_main", tmp_path, "6"],
                stdout=subprocess.PIPE,
                text=True,
            )
            wait_for(lambda: host(honest, 3) == owners[3])
            assert int(tenant.communicate()[0]) > 50
            put(honest, EXTENSION + 12_288 + 128 * 3 + 72, bytes(8))
            wait_for(lambda: host(honest, 3) == owners[3])
        after = honest.read_bytes()
        word = range(EXTENSION + 12_288 + 128 * 3 + 72, EXTENSION + 12_288 + 128 * 3 + 80)
        allowed = (*word, *range(RECENT, RECENT + 4))
        assert [at for at in range(END) if before[at] != after[at] and at not in allowed] == []
        assert outside.read_bytes() == untouched
        steerer.send_signal(signal.SIGTERM)
        assert steerer.wait(WAIT_SECONDS) == 0
    finally:
        end(server, steerer)


@pytest.mark.root
def test_it_needs_no_capability(tmp_path: Path) -> None:
    """As in the chart: uid 0 passes the kubelet's directories as their owner, and regions are every user's to write."""
    require_root()
    setpriv = require("setpriv", package="util-linux")
    root, shared = tmp_path / "regions", tmp_path / "shared"
    region = write(root / "one_main", IMAGE.v1())
    root.chmod(0o750)
    shared.mkdir()
    shared.chmod(0o777)
    for path in (region.parent, region, region.with_name("usage.lock")):
        os.chown(path, 1000, 1000)
        path.chmod(0o777 if path.is_dir() else 0o666)
    socket = shared / "s"
    server = isolator_monitor(
        *("serve", "--pods-file", write_pods(tmp_path / "pods.json", "one"), "--region-root", root),
        *(
            "--listen-address",
            "127.0.0.1",
            "--listen-port",
            "0",
            "--update-interval",
            "0.1",
            "--steerer-socket",
            socket,
        ),
    )
    nothing = [setpriv, "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]
    steerer = isolator_monitor("steer", "--region-root", root, "--steerer-socket", socket, wrapper=nothing)
    try:
        with hold(region.with_name("usage.lock"), [0]) as owners:
            wait_for(lambda: host(region, 0) == owners[0])
        assert "CapEff:\t0000000000000000\n" in Path(f"/proc/{steerer.pid}/status").read_text()
    finally:
        end(server, steerer)


def test_the_server_says_whether_it_has_one(tmp_path: Path) -> None:
    socket = tmp_path / "s"
    server = isolator_monitor(
        *("serve", "--pods-file", write_pods(tmp_path / "pods.json"), "--listen-address", "127.0.0.1"),
        *("--listen-port", "0", "--update-interval", "0.1", "--steerer-socket", socket),
    )
    steerers = []
    try:
        assert server.stderr
        log = map(json.loads, server.stderr)
        port = next(entry["port"] for entry in log if entry["event"] == "listening")

        def says(value: int) -> bool:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=WAIT_SECONDS) as answer:
                return f"\nisolator_monitor_steering {value}" in answer.read().decode()

        assert says(0)
        steerers.append(isolator_monitor("steer", "--steerer-socket", socket))
        wait_for(lambda: says(1))
        steerers[0].kill()
        wait_for(lambda: says(0))
        steerers.append(isolator_monitor("steer", "--steerer-socket", socket))
        wait_for(lambda: says(1))
    finally:
        end(server, *steerers)


def test_settings_that_are_wrong_are_one_sentence(tmp_path: Path) -> None:
    for arguments, words in (
        ((), "steerer-socket"),
        (("--steerer-socket", tmp_path / ("x" * 120)), "at most 107 bytes are accepted"),
    ):
        process = isolator_monitor("steer", *arguments)
        _, said = process.communicate(timeout=WAIT_SECONDS)
        assert process.returncode == 2
        assert words in said
        assert "Traceback" not in said
