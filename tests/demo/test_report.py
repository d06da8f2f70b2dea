"""The table and the evidence tell the same."""

import json
from pathlib import Path

from tests.demo.report import FAILURE, Check, table, write_evidence

GOOD = Check("visible_memory", {"host": "15360 MiB"}, {"host": "15360 MiB"}, ["host: 15360 MiB"])
WRONG = Check("enforced", {"a": 1, "b": "x"}, {"a": 2, "b": "x"}, ["a 2"])
BLIND = Check("metrics", {"used": 3}, {FAILURE: "no monitor is running"}, ["no monitor is running"])


def test_a_check_is_ok_only_if_all_is_observed_as_expected() -> None:
    assert [check.ok for check in (GOOD, WRONG, BLIND)] == [True, False, False]
    assert not Check("more", {"a": 1}, {"a": 1, "b": 2}, []).ok


def test_table_has_a_line_for_each_fact_and_the_reasons_below() -> None:
    lines = [line.split() for line in table([GOOD, WRONG, BLIND]).splitlines()]
    assert lines[0] == ["check", "what", "expected", "observed"]
    assert lines[2:] == [
        ["visible_memory", "host", "15360", "MiB", "15360", "MiB", "ok"],
        ["enforced", "a", "1", "2", "FAILED"],
        ["b", "x", "x", "ok"],
        ["metrics", "used", "3", "-", "FAILED"],
        [],
        ["metrics:", "no", "monitor", "is", "running"],
    ]


def test_long_values_are_cut_in_the_table_alone(tmp_path: Path) -> None:
    uuid = "GPU-5f3c9a1e-7d24-4b8e-9c60-2f1a8e4d7b35"
    check = Check("same_gpu", {"host": uuid}, {"host": uuid}, [uuid])
    assert uuid not in table([check])
    write_evidence([check], tmp_path / "evidence.json")
    assert json.loads((tmp_path / "evidence.json").read_text()) == {
        "same_gpu": {"expected": {"host": uuid}, "observed": {"host": uuid}, "raw": [uuid], "ok": True}
    }
