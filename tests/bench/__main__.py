"""Measure the parts named, or all, and print each figure beside its budget."""

import argparse
import datetime
import importlib
import os
import platform
import subprocess
import sys
import sysconfig
from pathlib import Path

from tests.bench import report

PARTS = sorted(
    path.stem for path in Path(__file__).parent.glob("*.py") if path.stem not in ("__init__", "__main__", "report")
)
RESULTS = Path(__file__).parents[2] / "docs" / "performance.md"
MARK = "<!-- results -->\n"


def machine() -> str:
    """What the figures were measured on, without naming the machine."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    model = next(names, platform.machine())
    today = datetime.datetime.now(datetime.UTC).date()
    return f"{today}, {os.cpu_count()} cores ({model}), Python {platform.python_version()}"


def compile_bytecode() -> None:
    """As pip leaves it in an image: a program that compiles its modules at each start takes a third more memory."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    folders = [
        sysconfig.get_path("purelib"),
        *(str(folder) for folder in Path(__file__).parents[2].glob("[ps]*/*/src")),
    ]
    command = [sys.executable, "-m", "compileall", "-q", "-j", "0", *folders]
    # Some packages bring test files that are no valid Python: its status says nothing of what is imported here.
    subprocess.run(command, stdout=subprocess.DEVNULL, check=False)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"one of {', '.join(PARTS)}; default all")
    parser.add_argument("--write", action="store_true", help="keep the table in docs/performance.md")
    chosen = parser.parse_args()
    unknown = [part for part in chosen.parts if part not in PARTS]
    if unknown:
        parser.error(f"unknown part {unknown[0]!r}; accepted are {', '.join(PARTS)}")
    compile_bytecode()
    rows = []
    for part in chosen.parts or PARTS:
        print(f"measuring {part} …", file=sys.stderr, flush=True)
        for row in importlib.import_module(f"tests.bench.{part}").rows():
            print(f"  {row.what}: {row.measured} ({row.budget})", file=sys.stderr, flush=True)
            rows.append(row)
    text = f"{machine()}\n\n{report.table(rows)}\n"
    print(text)
    if chosen.write:
        head = RESULTS.read_text().split(MARK)[0]
        RESULTS.write_text(f"{head}{MARK}\n{text}")
    return 1 if any(row.held is False for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
