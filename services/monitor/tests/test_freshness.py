"""What is said of how old a picture is, by a clock that the test moves."""

from collections.abc import Callable

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_plain

from isolator_monitor import monitor
from isolator_monitor.link import LinkDown
from isolator_monitor.monitor import Monitor
from isolator_monitor.view import View

INTERVAL = 5.0
FRESH, STALE = 24.9, 25.1


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(monitor, "time", found)
    return found


def samples(served: Monitor) -> dict[str, float]:
    """By name, the same from both formats."""
    status, _, plain = served.answer("/metrics", "")
    assert status == 200
    _, _, openmetrics = served.answer("/metrics", "application/openmetrics-text")
    found = {sample.name: sample.value for family in parse_plain(plain.decode()) for sample in family.samples}
    assert found.keys() == {
        sample.name for family in parse_openmetrics(openmetrics.decode()) for sample in family.samples
    }
    return found


def test_a_reading_grows_stale(clock: Clock, scene: Callable[[], View]) -> None:
    served = Monitor(scene, INTERVAL, legacy=False)
    assert served.update()
    for age, stale, ready in ((FRESH, 0, 200), (STALE, 1, 503)):
        clock.now = 1000.0 + age
        found = samples(served)
        assert found["isolator_monitor_snapshot_age_seconds"] == age
        assert found["isolator_monitor_snapshot_stale"] == stale
        assert "hami_vgpu_memory_used_bytes" in found
        assert served.answer("/readyz", "")[0] == ready


def test_a_monitor_that_never_read_the_node_says_that_it_is_stale(clock: Clock) -> None:
    """An alert needs a series, and the reader, or the right to list pods, can be missing from the start."""

    def never() -> View:
        raise LinkDown("no reader has connected")

    served = Monitor(never, INTERVAL, legacy=False)
    clock.now += FRESH
    assert not served.update()
    assert [served.answer(path, "")[0] for path in ("/metrics", "/readyz", "/board.json")] == [503] * 3
    clock.now = 1000.0 + STALE
    assert samples(served) == {"isolator_monitor_snapshot_age_seconds": STALE, "isolator_monitor_snapshot_stale": 1}
    assert [served.answer(path, "")[0] for path in ("/readyz", "/board.json")] == [503] * 2
