"""`isolator-monitor top`: the live table for people."""

import time
import urllib.error
import urllib.request

import msgspec
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from isolator_core.errors import UserError
from isolator_monitor.board import Board, Row
from isolator_monitor.settings import TopSettings

_GIB = 1 << 30
_BAR_COLUMNS = 16
_ANSWER_SECONDS = 10


class Answer(msgspec.Struct, frozen=True):
    """What `/board.json` gives."""

    age: float
    stale: bool
    board: Board


def fetch(url: str) -> Answer:
    """The picture of now. Raises UserError."""
    try:
        with urllib.request.urlopen(f"{url.rstrip('/')}/board.json", timeout=_ANSWER_SECONDS) as answer:
            return msgspec.json.decode(answer.read(), type=Answer)
    except urllib.error.HTTPError as error:
        with error:
            raise UserError(f"{url} answers {error.code}: {error.read().decode(errors='replace').strip()}") from error
    except (OSError, ValueError) as error:
        raise UserError(f"{url} does not answer: {getattr(error, 'reason', error)}") from error


def top(chosen: TopSettings) -> int:
    """Show the table until interrupted, or once. Raises UserError if there is no answer at the start."""
    console = Console()
    answer = fetch(chosen.url)
    if chosen.once or not console.is_terminal:
        console.print(picture(answer))
        return 0
    try:
        with Live(picture(answer), console=console, screen=True, auto_refresh=False) as live:
            while True:
                time.sleep(chosen.interval)
                try:
                    shown: Group | Text = picture(fetch(chosen.url))
                except UserError as error:
                    shown = Text(str(error), style="red")
                live.update(shown, refresh=True)
    except KeyboardInterrupt:
        return 0


def picture(answer: Answer) -> Group:
    """Cards and containers as tables."""
    board = answer.board
    state = Text(f"read {answer.age:.0f} s ago" + (": stale" if answer.stale else ""), "red" if answer.stale else "dim")
    if board.nvml_error:
        state.append(f"; NVML: {board.nvml_error}", "yellow")
    cards = Table(box=None, header_style="dim", pad_edge=False)
    for name in ("GPU", "Name", "Memory", "", "Limits", "Busy"):
        cards.add_column(name, justify="right" if name in ("Limits", "Busy") else "left")
    for card in board.cards:
        above = card.total is not None and card.limits > card.total
        cards.add_row(
            str(card.index),
            card.name,
            _bar(card.used, card.total),
            f"{_gib(card.used)} of {_gib(card.total)}",
            Text(_gib(card.limits), "red" if above else ""),
            _percent(card.utilization),
        )
    rows = Table(box=None, header_style="dim", pad_edge=False)
    for name in ("Pod", "Container", "GPU", "Memory", "", "Processes", "Compute", "Refused"):
        rows.add_column(name, justify="right" if name in ("Processes", "Compute", "Refused") else "left")
    for row in board.rows:
        _add(rows, row)
    problems = [
        Text(f"{row.namespace}/{row.pod} {row.container}: {problem}", "red")
        for row in board.rows
        for problem in row.problems
    ]
    return Group(state, Text(), cards, Text(), rows, *([Text(), *problems] if problems else []))


def _add(table: Table, row: Row) -> None:
    table.add_row(
        Text(f"{row.namespace}/{row.pod}"),
        Text(row.container),
        "–" if row.card is None else str(row.card),
        _bar(row.used, row.limit),
        f"{_gib(row.used)} of {'no limit' if row.limit == 0 else _gib(row.limit)}",
        str(row.processes),
        _percent(row.sm_percent) + (f" of {row.sm_limit_percent} %" if row.sm_limit_percent else ""),
        "–" if row.refusals is None else str(row.refusals),
    )


def _bar(used: int | None, total: int | None) -> ProgressBar:
    near = bool(total) and (used or 0) > 0.9 * (total or 0)
    style = "yellow" if near else "green"
    return ProgressBar(total or 1, min(used or 0, total or 0), _BAR_COLUMNS, complete_style=style, finished_style=style)


def _gib(size: int | None) -> str:
    return "unknown" if size is None else f"{size / _GIB:.2f} GiB"


def _percent(value: int | None) -> str:
    return "–" if value is None else f"{value} %"
