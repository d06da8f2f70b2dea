"""Objects of an API server are followed through all that goes wrong with one; nothing is lost and nothing made up."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import kubernetes.client
import msgspec
import pytest

from isolator_core import cluster_api
from isolator_core.cluster_api import ApiError, ResourceApi, load_configuration
from isolator_core.errors import SettingsError
from isolator_core.list_watch import ListWatch
from isolator_testing.node_api import Fault, NodeApi

WAIT_SECONDS = 30.0
PATH = "/api/v1/widgets"


class Metadata(msgspec.Struct):
    name: str


class Widget(msgspec.Struct):
    metadata: Metadata
    size: int = 0


class Widgets:
    """What a sink was told."""

    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}
        self.lists = 0
        self.confirmed = 0
        self.failures: list[str] = []
        self.waits: list[float] = []
        self.stopping = False

    def replace(self, objects: Sequence[Widget]) -> None:
        self.lists += 1
        self.sizes = {widget.metadata.name: widget.size for widget in objects}

    def apply(self, event: str, changed: Widget) -> None:
        if event == "DELETED":
            del self.sizes[changed.metadata.name]
        else:
            self.sizes[changed.metadata.name] = changed.size

    def confirm(self) -> None:
        self.confirmed += 1

    def failed(self, reason: str) -> None:
        self.failures.append(reason)

    def wait(self, seconds: float) -> bool:
        self.waits.append(seconds)
        time.sleep(0.001)
        return self.stopping


@pytest.fixture
def api() -> Iterator[NodeApi]:
    with NodeApi(path=PATH).running() as running:
        yield running


@pytest.fixture
def configuration(api: NodeApi, tmp_path: Path) -> kubernetes.client.Configuration:
    (tmp_path / "kubeconfig").write_text(api.kubeconfig("token"))
    return load_configuration(tmp_path / "kubeconfig", None, otherwise="nothing")


@pytest.fixture
def follow(configuration: kubernetes.client.Configuration) -> Iterator[Callable[[], Widgets]]:
    ends = []

    def start() -> Widgets:
        widgets = Widgets()
        source = ListWatch(ResourceApi(configuration, PATH, [("labelSelector", "a=b")]), Widget, widgets, widgets.wait)
        thread = threading.Thread(target=source.run, daemon=True)
        thread.start()
        ends.append((widgets, source, thread))
        return widgets

    yield start
    for widgets, source, thread in ends:
        widgets.stopping = True
        source.stop()
        thread.join(WAIT_SECONDS)
        assert not thread.is_alive()


def put(api: NodeApi, name: str, size: int) -> None:
    api.put({"metadata": {"name": name}, "size": size})


def eventually(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def watching(api: NodeApi) -> bool:
    return bool(api.requests) and api.requests[-1].watch


def test_listed_in_pages_and_then_followed(api: NodeApi, follow: Callable[[], Widgets]) -> None:
    for number in range(cluster_api.OBJECTS_A_PAGE + 1):
        put(api, f"w{number:03}", number)
    widgets = follow()
    eventually(lambda: watching(api) and len(widgets.sizes) == cluster_api.OBJECTS_A_PAGE + 1)
    assert {request.query["labelSelector"] for request in api.requests} == {"a=b"}
    put(api, "new", 7)
    put(api, "w000", 8)
    api.delete("w001")
    eventually(lambda: widgets.sizes.get("w000") == 8 and "w001" not in widgets.sizes and widgets.sizes["new"] == 7)
    assert (widgets.lists, widgets.failures) == (1, [])


def test_goes_on_where_a_watch_ended(api: NodeApi, follow: Callable[[], Widgets]) -> None:
    put(api, "a", 1)
    widgets = follow()
    eventually(lambda: watching(api))
    api.bookmark()
    eventually(lambda: widgets.confirmed == 1)
    version = str(api._version)
    api.cut()
    eventually(lambda: watching(api) and api.requests[-1].query["resourceVersion"] == version)
    put(api, "b", 2)
    eventually(lambda: widgets.sizes == {"a": 1, "b": 2})
    assert widgets.lists == 1


@pytest.mark.parametrize("how", ["event", "status"])
def test_forgotten_history_is_listed_anew(how: str, api: NodeApi, follow: Callable[[], Widgets]) -> None:
    put(api, "a", 1)
    put(api, "gone", 2)
    widgets = follow()
    eventually(lambda: watching(api))
    if how == "status":
        api.fail(Fault(410, "too old"), watch=True)
    api.stop()
    api.delete("gone")
    api.compact()
    api.start()
    eventually(lambda: widgets.sizes == {"a": 1})
    assert widgets.failures.count("gone") == 1


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (Fault(500, "internal"), "server_error"),
        (Fault(429, "slow down", retry_after="7"), "too_many_requests"),
        (Fault(403, "forbidden"), "forbidden"),
        (Fault(401, "who"), "unauthorized"),
        (Fault(200, body=b"<html>proxy</html>\n"), "malformed"),
        (Fault(cut_after=1), "connection"),
    ],
)
@pytest.mark.parametrize("watch", [False, True])
def test_failures_are_named_and_tried_again(
    watch: bool, fault: Fault, reason: str, api: NodeApi, follow: Callable[[], Widgets]
) -> None:
    put(api, "a", 1)
    api.fail(fault, watch=watch)
    widgets = follow()
    if watch and fault.cut_after:
        eventually(lambda: watching(api))
        put(api, "c", 3)
    eventually(lambda: watching(api) and widgets.failures == [reason])
    put(api, "b", 2)
    eventually(lambda: widgets.sizes.get("b") == 2 and widgets.sizes["a"] == 1)
    assert widgets.waits[0] >= (7 if fault.retry_after else 0.25)


@pytest.mark.parametrize(
    "line", [b"{", b'{"type":"ADDED"}', b'{"type":"ADDED","object":{"metadata":1}}', b'{"type":"NEW","object":{}}']
)
def test_an_event_that_is_not_understood_loses_nothing(
    line: bytes, api: NodeApi, follow: Callable[[], Widgets]
) -> None:
    put(api, "a", 1)
    widgets = follow()
    eventually(lambda: watching(api))
    api.send(line)
    put(api, "b", 2)
    eventually(lambda: widgets.sizes == {"a": 1, "b": 2})
    assert widgets.failures == ["malformed"]


def test_objects_are_created(api: NodeApi, configuration: kubernetes.client.Configuration) -> None:
    with kubernetes.client.ApiClient(configuration) as client:
        made = {"metadata": {"name": "e"}}
        cluster_api.request(client, "POST", "/api/v1/namespaces/team/events", [], made).drain_conn()
        assert api.posted == [("/api/v1/namespaces/team/events", made)]
        with pytest.raises(ApiError) as caught:
            cluster_api.request(client, "POST", "/api/v1/namespaces/team/events", [], made)
        assert (caught.value.status, caught.value.reason) == (409, "refused")


def test_outside_a_cluster_it_says_what_to_give(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(SettingsError, match=r"not in a pod \(.*\): give --pods-file"):
        load_configuration(None, None, otherwise="--pods-file")
    (tmp_path / "k").write_text("[]")
    with pytest.raises(SettingsError, match=f"--kubeconfig {tmp_path}/k: "):
        load_configuration(tmp_path / "k", None, otherwise="")
