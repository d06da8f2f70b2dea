"""The program `isolator-monitor`: its commands."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from isolator_core import settings
from isolator_core.settings import Command
from isolator_monitor.settings import (
    CleanSettings,
    OnceSettings,
    ReadSettings,
    ServeSettings,
    SteerSettings,
    TopSettings,
)


def _of(module: str, function: str) -> Callable[[Any], int]:
    """A command whose module is imported when it runs: reader and server are always there and load what they need."""
    return lambda chosen: int(getattr(import_module(f"isolator_monitor.{module}"), function)(chosen))


COMMANDS: list[Command[Any]] = [
    Command("serve", "Serve the metrics of this node's containers over HTTP.", ServeSettings, _of("serve", "serve")),
    Command(
        "read",
        "Read this node's files and GPUs for a server that asks over a socket.",
        ReadSettings,
        _of("read", "read"),
    ),
    Command(
        "steer",
        "Write into regions what containers cannot know: their PIDs on the node, and who has to wait for whom.",
        SteerSettings,
        _of("steer", "steer"),
    ),
    Command("once", "Print the metrics of now and end.", OnceSettings, _of("serve", "once")),
    Command("clean", "Remove regions that ended pods left in hostPath volumes.", CleanSettings, _of("clean", "clean")),
    Command("top", "Show a live table of a monitor that serves.", TopSettings, _of("top", "top")),
]


def main() -> int:
    """Run the program."""
    return settings.main(
        "isolator-monitor",
        "ISOLATOR_MONITOR_",
        "Metrics of what each container on this node uses of its GPU share.",
        COMMANDS,
    )
