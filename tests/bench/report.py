"""What a measurement looks like, and how it is printed.

A part's module has `rows()`, which measures and yields `Row`s. Machines are noisy, so a budget is a difference or a
ratio to a baseline that was measured in the same run; take medians of several rounds that alternate between the two.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One figure. `held` is None where the budget only asks for a report."""

    what: str
    baseline: str
    measured: str
    budget: str
    held: bool | None


def _verdict(row: Row) -> str:
    if row.held is None:
        return "reported"
    return "held" if row.held else "EXCEEDED"


def table(rows: Iterable[Row]) -> str:
    """The rows as a Markdown table."""
    lines = ["| what | baseline | measured | budget | |", "|---|---|---|---|---|"]
    lines += [f"| {row.what} | {row.baseline} | {row.measured} | {row.budget} | {_verdict(row)} |" for row in rows]
    return "\n".join(lines)
