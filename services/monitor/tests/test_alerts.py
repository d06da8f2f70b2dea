"""What is said to people, and how often."""

import re
from dataclasses import replace

import pytest

from isolator_monitor.alerts import NOTICE, UNPROTECTED, Alert, Alerts, alerts
from isolator_monitor.events import event
from isolator_monitor.pods import Metadata, Pod, Spec, Status
from isolator_monitor.protection import Reason, Unprotected

UIDS = frozenset({"u"})
HOUR = 3600.0
ALERT = Alert("team", "a", "u", UNPROTECTED, "text", "main/no_mounts")


class Recorder:
    def __init__(self) -> None:
        self.recorded: list[Alert] = []
        self.failed: list[Alert] = []

    def record(self, alert: Alert) -> None:
        self.recorded.append(alert)

    def lost(self) -> list[Alert]:
        failed, self.failed = self.failed, []
        return failed


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


def test_said_when_it_lasts_and_then_hourly(recorder: Recorder) -> None:
    telling = Alerts(recorder)
    for now, expected in ((0.0, 0), (5.0, 1), (10.0, 1), (HOUR, 1), (HOUR + 6, 2), (HOUR + 11, 2)):
        telling.tell([ALERT], UIDS, now)
        assert len(recorder.recorded) == expected, now


def test_what_passes_at_once_is_not_said(recorder: Recorder) -> None:
    telling = Alerts(recorder)
    for now in range(100):
        telling.tell([ALERT] if now % 2 else [], UIDS, float(now))
    assert recorder.recorded == []


def test_a_tenant_that_changes_its_text_is_not_heard_more_often(recorder: Recorder) -> None:
    telling = Alerts(recorder)
    for now in range(100):
        found = [replace(ALERT, text=str(now))] if now % 3 else []
        telling.tell(found, UIDS, float(now))
    assert len(recorder.recorded) == 1


def test_a_tenant_that_changes_its_notice_is_not_heard_more_often(recorder: Recorder) -> None:
    telling = Alerts(recorder)
    for now in range(100):
        annotations = {"kai-resource-isolator.io/notice": f"notice {now // 2}"}
        pod = Pod(metadata=Metadata(name="a", namespace="team", uid="u", annotations=annotations), spec=Spec())
        telling.tell(alerts([], [pod]), UIDS, float(now))
    assert [alert.text for alert in recorder.recorded] == ["notice 0"]
    assert len(telling._said) == 1


def test_lost_events_are_tried_again_after_a_minute(recorder: Recorder) -> None:
    telling = Alerts(recorder)
    telling.tell([ALERT], UIDS, 0.0)
    telling.tell([ALERT], UIDS, 5.0)
    recorder.failed.append(ALERT)
    for now, expected in ((10.0, 1), (60.0, 1), (71.0, 2)):
        telling.tell([ALERT], UIDS, now)
        assert len(recorder.recorded) == expected, now


def test_a_pod_that_is_gone_is_forgotten(recorder: Recorder) -> None:
    telling = Alerts(recorder)
    telling.tell([ALERT], UIDS, 0.0)
    telling.tell([ALERT], UIDS, 5.0)
    telling.tell([], frozenset(), 10.0)
    assert telling._said == {}


def test_unprotected_containers_and_notices() -> None:
    notice = {"kai-resource-isolator.io/notice": "one\ntwo"}
    pods = [
        Pod(metadata=Metadata(name="b", namespace="team", uid="v", annotations=notice), spec=Spec()),
        Pod(
            metadata=Metadata(name="c", namespace="team", uid="w", annotations=notice),
            spec=Spec(),
            status=Status(phase="Succeeded"),
        ),
    ]
    found = alerts([Unprotected("team", "a", "u", "main", Reason.NO_LIMIT, "why")], pods)
    assert [(alert.pod, alert.reason, alert.text) for alert in found] == [
        ("a", UNPROTECTED, "container main is not held to its GPU share (no_limit): why"),
        ("b", NOTICE, "one two"),
    ]


def test_names_of_events_are_names_to_kubernetes() -> None:
    alert = replace(ALERT, pod="p" * 253, text="x" * 5000)
    names = []
    for now in (1_700_000_000.0, 1_700_000_001.0, 1_700_003_600.0):
        made = event(alert, "node-1", now)
        metadata = made["metadata"]
        assert isinstance(metadata, dict)
        names.append(metadata["name"])
    assert len(names[0]) <= 253
    assert names[0] == names[1] != names[2]
    assert made["lastTimestamp"] == "2023-11-14T23:13:20Z"
    assert len(str(made["message"])) == 1024
    assert replace(alert, key="main/no_limit").name != alert.name
    assert replace(alert, text="other").name == alert.name


@pytest.mark.parametrize("end", ["-", ".", "-.-"])
def test_a_pods_name_that_is_cut_ends_as_names_do(end: str) -> None:
    """Kubernetes: labels of letters, digits and `-`, joined by dots, none of which begins or ends with `-`."""
    pod = ("p" * 200)[: -len(end)] + end + "tail"
    label = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
    assert re.fullmatch(rf"{label}(\.{label})*", replace(ALERT, pod=pod).name)
