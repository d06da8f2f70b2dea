"""docs/compatibility.md: what came of each way to find CUDA, on each C library. The tests compare with it, or write it.

One table for each machine and kind of program; a line for each way, a column for each system.
"""

from tests.everywhere import builds

DOCUMENT = builds.ROOT / "docs" / "compatibility.md"
START = "<!-- written by ./dev run pytest tests/everywhere --write-compatibility -->"
END = "<!-- end of what the tests write -->"

Results = dict[str, str]
Tables = dict[str, dict[str, Results]]


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def _parse(written: str) -> Tables:
    tables: Tables = {}
    systems: list[str] = []
    for line in written.splitlines():
        if line.startswith("### "):
            title = line.removeprefix("### ")
            tables[title], systems = {}, []
        elif line.startswith("|") and not systems:
            systems = _cells(line)[1:]
            tables[title] = {system: {} for system in systems}
        elif line.startswith("|") and not line.startswith("|---"):
            way, *results = _cells(line)
            for system, result in zip(systems, results, strict=True):
                if result:
                    tables[title][system][way] = result
    return tables


def _render(tables: Tables) -> str:
    lines: list[str] = []
    for title in sorted(tables):
        systems = sorted(tables[title])
        ways = list(dict.fromkeys(way for system in systems for way in tables[title][system]))
        lines += ["", f"### {title}", "", f"| way | {' | '.join(systems)} |", "|---" * (len(systems) + 1) + "|"]
        lines += [f"| {way} | {' | '.join(tables[title][s].get(way, '') for s in systems)} |" for way in ways]
    return "\n".join(lines)


def _split(document: str) -> tuple[str, str, str]:
    before, _, rest = document.partition(START)
    written, _, after = rest.partition(END)
    return before, written, after


def check(title: str, system: str, results: Results, *, write: bool) -> None:
    """Compare a column with the page, or write it there."""
    before, written, after = _split(DOCUMENT.read_text())
    tables = _parse(written)
    if write:
        tables.setdefault(title, {})[system] = results
        DOCUMENT.write_text(f"{before}{START}\n{_render(tables)}\n\n{END}{after}")
        return
    assert tables.get(title, {}).get(system) == results, f"{DOCUMENT.name} says otherwise of {system}, {title}"
