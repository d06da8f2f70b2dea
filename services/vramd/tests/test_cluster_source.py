"""List and watch against an HTTP API that fails in every way that one does."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from isolator_core import cluster_api, list_watch
from isolator_core.errors import SettingsError
from isolator_core.list_watch import Backoff, ListWatch
from isolator_testing.node_api import Fault, NodeApi, make_node
from isolator_vramd import cluster
from isolator_vramd.affinity import Constraints, Parsed, parse_constraints
from isolator_vramd.basis import Answer, Basis, Cause, Unknown
from isolator_vramd.metrics import SourceMetrics
from isolator_vramd.nodes import GpuNode, Node
from isolator_vramd.store import Change, NodeStore

WAIT_SECONDS = 30.0
EVERY = parse_constraints(Constraints())


def eventually(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < end, "the condition did not come true in time"
        time.sleep(0.005)


@dataclass
class FakeClock:
    """Waiting takes no time and moves the clock."""

    now: float = 0.0
    waits: list[float] = field(default_factory=list)
    stopping: bool = False

    def time(self) -> float:
        return self.now

    def wait(self, seconds: float) -> bool:
        self.waits.append(seconds)
        self.now += seconds
        time.sleep(0.001)
        return self.stopping


class LockedStore:
    """A store that a source's thread writes and a test reads; the program does both on its event loop."""

    def __init__(self, clock: FakeClock) -> None:
        self._store = NodeStore(None, clock.time)
        self._lock = threading.Lock()

    def replace(self, nodes: list[GpuNode]) -> None:
        with self._lock:
            self._store.replace(nodes)

    def apply(self, changes: list[Change]) -> None:
        with self._lock:
            self._store.apply(changes)

    def confirm(self) -> None:
        with self._lock:
            self._store.confirm()

    def answer(self, constraints: Parsed = EVERY) -> Answer:
        with self._lock:
            return self._store.answer(constraints)

    def age_seconds(self) -> float | None:
        with self._lock:
            return self._store.age_seconds()

    def names(self) -> set[str]:
        with self._lock:
            return set(self._store.index.names())


@dataclass
class Following:
    """A source that runs in a thread and writes to a store."""

    api: NodeApi
    store: LockedStore
    clock: FakeClock
    source: ListWatch[Node, Change]
    registry: CollectorRegistry
    thread: threading.Thread

    def basis(self) -> int:
        answer = self.store.answer()
        return answer.basis_mib if isinstance(answer, Basis) else 0

    def nodes(self) -> set[str]:
        return self.store.names()

    def count(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(name, labels) or 0.0

    def failures(self, reason: str) -> float:
        return self.count("isolator_vramd_source_failures_total", reason=reason)

    def watching(self) -> bool:
        return bool(self.api.requests) and self.api.requests[-1].watch


@pytest.fixture
def api() -> Iterator[NodeApi]:
    with NodeApi().running() as running:
        yield running


@pytest.fixture
def follow(api: NodeApi, tmp_path: Path) -> Iterator[Callable[[], Following]]:
    started: list[Following] = []

    def start() -> Following:
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(api.kubeconfig("token-of-the-test"))
        clock = FakeClock()
        registry = CollectorRegistry()
        store = LockedStore(clock)
        configuration = cluster_api.load_configuration(kubeconfig, None, otherwise="")
        source = cluster.source(configuration, store, SourceMetrics(registry), clock.wait)
        thread = threading.Thread(target=source.run, daemon=True)
        following = Following(api, store, clock, source, registry, thread)
        started.append(following)
        thread.start()
        return following

    yield start
    for following in started:
        following.clock.stopping = True
        following.source.stop()
        following.thread.join(WAIT_SECONDS)
        assert not following.thread.is_alive()


def put(api: NodeApi, name: str, mib: int | str, **labels: str) -> None:
    api.put(make_node(name, {"nvidia.com/gpu.memory": str(mib), **labels}, size_bytes=2000))


def test_nodes_are_listed_and_then_followed(api: NodeApi, follow: Callable[[], Following]) -> None:
    put(api, "a", 40960)
    put(api, "b", 15360)
    api.put({"metadata": {"name": "cpu"}})
    following = follow()
    eventually(lambda: following.basis() == 15360)
    assert following.nodes() == {"a", "b"}
    put(api, "c", 8192)
    eventually(lambda: following.basis() == 8192)
    put(api, "c", 80000)
    eventually(lambda: following.basis() == 15360)
    api.delete("b")
    eventually(lambda: following.basis() == 40960)
    # A node that loses its GPU is no GPU node any more.
    api.put({"metadata": {"name": "a", "labels": {"pool": "x"}}})
    eventually(lambda: following.nodes() == {"c"})
    api.delete("c")
    eventually(lambda: following.nodes() == set())
    answer = following.store.answer()
    assert isinstance(answer, Unknown)
    assert answer.cause is Cause.NO_GPU_NODE
    assert following.clock.waits == []


def test_what_is_asked_of_the_api_server(api: NodeApi, follow: Callable[[], Following]) -> None:
    for number in range(2 * cluster_api.OBJECTS_A_PAGE + 1):
        api.put({"metadata": {"name": f"n{number:04}", "labels": {"nvidia.com/gpu.memory": "100"}}})
    following = follow()
    eventually(following.watching)
    *lists, watch = api.requests
    assert [request.query.get("limit") for request in lists] == ["500", "500", "500"]
    assert "continue" not in lists[0].query
    assert all("+" in request.query["continue"] for request in lists[1:])
    assert watch.query["allowWatchBookmarks"] == "true"
    assert watch.query["resourceVersion"] == str(1000 + 1001)
    assert 240 <= int(watch.query["timeoutSeconds"]) <= 480
    assert {request.authorization for request in api.requests} == {"Bearer token-of-the-test"}
    assert len(following.nodes()) == 1001


def test_nothing_is_answered_from_half_a_list(api: NodeApi, follow: Callable[[], Following]) -> None:
    for number in range(cluster_api.OBJECTS_A_PAGE + 1):
        api.put({"metadata": {"name": f"n{number:04}", "labels": {"nvidia.com/gpu.memory": str(1000 - number)}}})
    second_page_only = Fault(500, "etcd is slow")
    api.fail(Fault(200, body=b'{"items":[],"metadata":{"resourceVersion":"1","continue":"x+1"}}'))
    api.fail(second_page_only, times=3)
    following = follow()
    eventually(lambda: following.failures("server_error") >= 1)
    assert following.store.answer() == Unknown(Cause.NOT_READ, "the nodes were not read yet")
    eventually(lambda: following.basis() == 1000 - cluster_api.OBJECTS_A_PAGE)


def test_watch_goes_on_where_it_ended(api: NodeApi, follow: Callable[[], Following]) -> None:
    put(api, "a", 100)
    following = follow()
    eventually(following.watching)
    put(api, "b", 90)
    eventually(lambda: following.basis() == 90)
    version = api._version
    api.cut()
    eventually(lambda: following.watching() and api.requests[-1].query["resourceVersion"] == str(version))
    put(api, "c", 80)
    eventually(lambda: following.basis() == 80)
    assert following.count("isolator_vramd_source_lists_total") == 1


def test_bookmark_moves_the_version_and_confirms(api: NodeApi, follow: Callable[[], Following]) -> None:
    put(api, "a", 100)
    following = follow()
    eventually(following.watching)
    following.clock.now += 50
    assert following.store.age_seconds() == 50
    # Others' changes move the cluster's version on without an event for us.
    api._version += 1000
    api.bookmark()
    eventually(lambda: following.store.age_seconds() == 0)
    version = api._version
    api.cut()
    eventually(lambda: api.requests[-1].query.get("resourceVersion") == str(version))
    assert following.count("isolator_vramd_source_events_total", type="BOOKMARK") == 1


@pytest.mark.parametrize("how", ["event", "status"])
def test_forgotten_version_is_listed_anew(how: str, api: NodeApi, follow: Callable[[], Following]) -> None:
    put(api, "a", 100)
    put(api, "gone", 50)
    following = follow()
    eventually(following.watching)
    if how == "status":
        api.fail(Fault(410, "too old"), watch=True)
    # Everything changes while nobody watches, and the history is lost.
    api.stop()
    api.delete("gone")
    put(api, "b", 90)
    api.compact()
    api.start()
    eventually(lambda: following.nodes() == {"a", "b"})
    assert following.basis() == 90
    assert following.failures("gone") == 1
    assert following.count("isolator_vramd_source_lists_total") == 2


def test_list_token_that_expires_starts_the_list_anew(api: NodeApi, follow: Callable[[], Following]) -> None:
    for number in range(cluster_api.OBJECTS_A_PAGE + 1):
        put(api, f"n{number:04}", 1000 - number)
    api.fail(Fault(200, body=b'{"items":[],"metadata":{"resourceVersion":"1","continue":"forgotten+500"}}'))
    following = follow()
    eventually(lambda: following.basis() == 1000 - cluster_api.OBJECTS_A_PAGE)
    assert following.failures("gone") == 1


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (Fault(500, "internal"), "server_error"),
        (Fault(503, "unavailable"), "server_error"),
        (Fault(429, "slow down", retry_after="7"), "too_many_requests"),
        (Fault(403, "nodes is forbidden: no"), "forbidden"),
        (Fault(401, "Unauthorized"), "unauthorized"),
        (Fault(404, "no such thing"), "refused"),
        (Fault(302, "elsewhere"), "refused"),
        (Fault(502, body=b"<html>proxy</html>"), "server_error"),
        (Fault(200, body=b"<html>proxy</html>\n"), "malformed"),
        (Fault(200, body=b'{"items": "many"}\n'), "malformed"),
    ],
)
@pytest.mark.parametrize("watch", [False, True])
def test_failure_is_named_and_tried_again(
    watch: bool, fault: Fault, reason: str, api: NodeApi, follow: Callable[[], Following]
) -> None:
    put(api, "a", 100)
    api.fail(fault, watch=watch)
    following = follow()
    eventually(lambda: following.watching() and following.failures(reason) == 1)
    put(api, "b", 90)
    eventually(lambda: following.basis() == 90)
    assert following.clock.waits[0] >= (7 if fault.retry_after else 0.25)


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b'{"type":"ADDED"}',
        b'{"type":"ADDED","object":{"metadata":{"labels":{"x":1}}}}',
        b'{"type":"SURPRISE","object":{}}',
        b'{"type":"ERROR","object":{"kind":"Status","status":"Failure","message":"internal","code":500}}',
    ],
)
def test_event_that_cannot_be_understood_loses_nothing(
    line: bytes, api: NodeApi, follow: Callable[[], Following]
) -> None:
    put(api, "a", 100)
    following = follow()
    eventually(following.watching)
    api.send(line)
    put(api, "b", 90)
    eventually(lambda: following.basis() == 90)
    put(api, "c", 80)
    eventually(lambda: following.basis() == 80)
    assert following.thread.is_alive()


def test_list_that_is_cut_in_the_middle(api: NodeApi, follow: Callable[[], Following]) -> None:
    put(api, "a", 100)
    api.fail(Fault(cut_after=500), watch=False)
    following = follow()
    eventually(lambda: following.basis() == 100)
    assert following.failures("connection") == 1


def test_watch_that_ends_within_an_event(api: NodeApi, follow: Callable[[], Following]) -> None:
    put(api, "a", 100)
    api.fail(Fault(200, body=b'{"type":"ADD'), watch=True)
    following = follow()
    eventually(lambda: following.failures("connection") == 1 and following.watching())
    put(api, "b", 90)
    eventually(lambda: following.basis() == 90)


def test_watch_that_is_cut_in_the_middle_of_an_event(api: NodeApi, follow: Callable[[], Following]) -> None:
    put(api, "a", 100)
    api.fail(Fault(cut_after=500), watch=True)
    following = follow()
    eventually(following.watching)
    put(api, "b", 90)
    eventually(lambda: following.basis() == 90)
    assert following.failures("connection") == 1
    assert following.count("isolator_vramd_source_lists_total") == 1


def test_watches_that_end_at_once_are_not_hammered(api: NodeApi, follow: Callable[[], Following]) -> None:
    put(api, "a", 100)
    api.fail(Fault(200, body=b""), times=8, watch=True)
    following = follow()
    eventually(lambda: len(following.clock.waits) >= 8)
    assert sum(following.clock.waits[:8]) > 30
    put(api, "b", 90)
    eventually(lambda: following.basis() == 90)


def test_api_server_away_for_an_hour(api: NodeApi, follow: Callable[[], Following]) -> None:
    put(api, "a", 100)
    put(api, "b", 50)
    following = follow()
    eventually(following.watching)
    api.stop()
    eventually(lambda: following.clock.now > 3600)
    # What was known is still answered, and the age says since when nothing was heard.
    assert following.basis() == 50
    age = following.store.age_seconds()
    assert age is not None
    assert age > 3500
    attempts, hours = len(following.clock.waits), following.clock.now / 3600
    longest = list_watch.LONGEST_BACKOFF_SECONDS
    assert hours * 3600 / longest < attempts < hours * 3600 / longest * 2 + 16
    api.delete("b")
    put(api, "c", 70)
    api.start()
    eventually(lambda: following.basis() == 70)
    assert following.store.age_seconds() == 0
    assert following.nodes() == {"a", "c"}


def test_api_server_that_accepts_and_never_answers(
    api: NodeApi, follow: Callable[[], Following], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_api, "PAGE_SECONDS", 0.2)
    api.hold(True)
    following = follow()
    eventually(lambda: following.failures("timeout") >= 2)
    put(api, "a", 100)
    api.hold(False)
    eventually(lambda: following.basis() == 100)


def test_flapping_nodes_end_in_the_right_place(api: NodeApi, follow: Callable[[], Following]) -> None:
    put(api, "steady", 100)
    following = follow()
    eventually(following.watching)
    for round_ in range(200):
        put(api, "flapping", 50)
        if round_ % 3 == 0:
            put(api, "flapping", "")
        if round_ % 50 == 49:
            api.cut()
        api.delete("flapping")
    put(api, "last", 90)
    eventually(lambda: following.basis() == 90)
    assert following.nodes() == {"steady", "last"}


def test_thousands_of_nodes_that_change_at_once(api: NodeApi, follow: Callable[[], Following]) -> None:
    for number in range(5000):
        api.put({"metadata": {"name": f"n{number:04}", "labels": {"nvidia.com/gpu.memory": "40960", "pool": "x"}}})
    following = follow()
    eventually(following.watching)
    for number in range(5000):
        labels = {"nvidia.com/gpu.memory": str(20000 + number), "pool": "y"}
        api.put({"metadata": {"name": f"n{number:04}", "labels": labels}})
    in_y = parse_constraints(Constraints(node_selector={"pool": "y"}))

    def basis_in_y() -> tuple[int, int]:
        answer = following.store.answer(in_y)
        return (answer.basis_mib, answer.nodes) if isinstance(answer, Basis) else (0, 0)

    eventually(lambda: basis_in_y() == (20000, 5000))
    assert following.basis() == 20000


@given(st.lists(st.floats(0, 1), min_size=1, max_size=60))
def test_backoff_grows_to_its_bound_and_starts_over(chances: list[float]) -> None:
    backoff = Backoff()
    for position, chance in enumerate(chances):
        seconds = backoff.next(chance)
        longest = min(30.0, 0.5 * 2**position)
        assert longest / 2 <= seconds <= longest
    backoff.reset()
    assert backoff.next(1.0) == 0.5


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, ["Invalid kube-config file"]),
        ("{", ["kubeconfig"]),
        ("[]", ["kubeconfig"]),
        ("current-context: x\ncontexts: []\nclusters: []\nusers: []\n", ["x"]),
    ],
)
def test_wrong_kubeconfig_is_named(tmp_path: Path, content: str | None, words: list[str]) -> None:
    path = tmp_path / "kubeconfig"
    if content is not None:
        path.write_text(content)
    with pytest.raises(SettingsError) as error:
        cluster_api.load_configuration(path, None, otherwise="")
    for word in [str(path), *words]:
        assert word in str(error.value)
