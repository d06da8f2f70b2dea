"""Writes the settings in services/webhook/README.md from the settings themselves: `python -m tests.docs.settings`."""

from pathlib import Path

from isolator_core.settings import Positional, Settings
from isolator_webhook.cli import COMMANDS

PAGE = Path(__file__).parents[2] / "services" / "webhook" / "README.md"
BEGIN = "<!-- settings: made by python -m tests.docs.settings -->\n"
END = "<!-- end of settings -->\n"


def _rows(settings: type[Settings]) -> list[str]:
    lines = ["| flag | default | what it does |", "|---|---|---|"]
    for name, field in settings.model_fields.items():
        default = field.default
        if field.is_required() or default in (None, (), ""):
            shown = ""
        elif isinstance(default, tuple):
            shown = "`" + ",".join(map(str, default)) + "`"
        else:
            shown = f"`{default}`"
        if name == "pod_name":
            shown = "the host's name"
        positional = any(isinstance(mark, Positional) for mark in field.metadata)
        flag = name.upper() if positional else "--" + name.replace("_", "-")
        lines.append(f"| `{flag}` | {shown} | {field.description} |")
    return lines


def section() -> str:
    """Tables of all commands."""
    lines = []
    for command in COMMANDS:
        lines += [f"### `isolator-webhook {command.name}`", "", command.help, "", *_rows(command.settings), ""]
    return "\n".join(lines)


def page(text: str) -> str:
    """The page with its settings made anew."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{section()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
