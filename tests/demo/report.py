"""What the demo tells: a table for people and `demo-evidence.json`."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

Value = str | int
Facts = dict[str, Value]
"""What was looked at, and what it was."""

FAILURE = "failure"
"""The fact that stands for all others where they could not be observed."""

WIDEST = 28


@dataclass(frozen=True)
class Check:
    """One thing that the demo shows. `raw` is the output that `observed` was parsed from."""

    name: str
    expected: Facts
    observed: Facts
    raw: Sequence[str]

    @property
    def ok(self) -> bool:
        return self.expected == self.observed


def write_evidence(checks: Iterable[Check], path: Path) -> None:
    """Write every check with its raw output as JSON, by name."""
    entries = {
        check.name: {"expected": check.expected, "observed": check.observed, "raw": list(check.raw), "ok": check.ok}
        for check in checks
    }
    path.write_text(json.dumps(entries, indent=2) + "\n")


def table(checks: Iterable[Check]) -> str:
    """A line for each fact: check, what was looked at, expected and observed, whether they agree.

    Below it, why facts could not be observed.
    """
    rows = [("check", "what", "expected", "observed", "")]
    failures: dict[Value, list[str]] = {}
    for check in checks:
        name = check.name
        for what, wanted in check.expected.items():
            expected, observed = _cell(wanted), _cell(check.observed.get(what, "-"))
            rows.append((name, what, expected, observed, "ok" if wanted == check.observed.get(what) else "FAILED"))
            name = ""
        if FAILURE in check.observed:
            failures.setdefault(check.observed[FAILURE], []).append(check.name)
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines.insert(1, "  ".join("-" * width for width in widths))
    why = [f"{', '.join(names)}: {reason}" for reason, names in failures.items()]
    return "\n".join([*lines, *([""] if why else []), *why])


def _cell(value: Value) -> str:
    text = str(value)
    return text if len(text) <= WIDEST else f"{text[: WIDEST - 9]}…{text[-8:]}"
