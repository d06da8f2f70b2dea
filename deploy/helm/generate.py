"""Make what follows from the umbrella chart's values.yaml: schemas, known keys, tables, the thin charts' values.

python -m deploy.helm.generate           write
python -m deploy.helm.generate --check   say what is stale, status 1
"""

import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
UMBRELLA = HERE / "kai-resource-isolator"
EVERYWHERE = (
    "nameOverride", "fullnameOverride", "namespaceOverride", "global", "image", "logLevel", "listenAddress",
    "commonLabels", "commonAnnotations", "rbac", "networkPolicy",
)  # fmt: skip
THIN = {
    "webhook": ("paths", "volumes", "metrics", "kai", "service", "policies", "priorityQuota", "test", "tls", "webhook"),
    "vramd": ("metrics", "vramd"),
    "libsync": ("paths", "volumes", "metrics", "priorityQuota", "librarySync", "cleaner"),
    "monitor": ("paths", "volumes", "kai", "priorityQuota", "monitor"),
}
OFF_IN_UMBRELLA = "# Install the monitor.\n  enabled: false"
FILES = {"rules.yaml": "rules/kai-resource-isolator.yaml", "dashboard.json": "dashboards/gpu-shares.json"}
MONITOR = HERE.parents[1] / "services" / "monitor"
BEGIN, END = "<!-- values -->\n", "<!-- end of values -->\n"
_KEY = re.compile(r"^( *)([\w.-]+):(?: |$)")


class Malformed(Exception):
    """values.yaml does not follow the rules in its first lines."""


@dataclass(frozen=True)
class Key:
    """One documented key."""

    path: tuple[str, ...]
    default: Any
    description: str
    open: bool
    enum: tuple[str, ...]
    types: tuple[str, ...]


@dataclass
class _Comment:
    words: list[str] = field(default_factory=list)
    directives: dict[str, str] = field(default_factory=dict)

    def add(self, line: str) -> None:
        if line.startswith("@"):
            name, _, argument = line[1:].partition(" ")
            self.directives[name] = argument
        else:
            self.words.append(line)


def read_keys(text: str) -> Iterator[Key]:
    """Every key of values.yaml that is not below an open one, in order. Raises Malformed for one without a comment."""
    values = yaml.safe_load(text)
    path: list[str] = []
    comment = _Comment()
    inside_open: int | None = None
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith("# "):
            comment.add(stripped[2:])
            continue
        match = _KEY.match(line)
        if match is None:
            continue
        depth = len(match[1]) // 2
        path = [*path[:depth], match[2]]
        found, comment = comment, _Comment()
        if inside_open is not None and depth > inside_open and not found.words:
            continue
        inside_open = depth if "open" in found.directives else None if depth <= (inside_open or 0) else inside_open
        default = values
        for name in path:
            default = default[name]
        if isinstance(default, Mapping) and "open" not in found.directives:
            if not default:
                raise Malformed(f"{'.'.join(path)} is an empty map and not @open")
            continue
        if not found.words:
            if isinstance(default, Mapping):
                continue
            raise Malformed(f"{'.'.join(path)} has no comment")
        yield Key(
            tuple(path), default, " ".join(found.words), "open" in found.directives,
            tuple(filter(None, found.directives.get("enum", "").split(","))),
            tuple(filter(None, found.directives.get("type", "").split(","))),
        )  # fmt: skip


def _type_of(key: Key) -> list[str]:
    by_default = {str: "string", bool: "boolean", int: "integer", list: "array", dict: "object"}
    return list(dict.fromkeys([by_default[type(key.default)], *key.types, "null"]))


def schema(values: Mapping[str, Any], keys: Mapping[tuple[str, ...], Key]) -> dict[str, Any]:
    """JSON schema of a chart's values. Unknown keys are left to the templates, which can say what was meant."""

    def node(value: Any, path: tuple[str, ...]) -> dict[str, Any]:
        key = keys.get(path)
        if isinstance(value, Mapping) and (key is None or not key.open):
            return {"type": ["object", "null"], "properties": {k: node(v, (*path, k)) for k, v in value.items()}}
        if key is None:
            return {}
        result: dict[str, Any] = {"type": _type_of(key), "description": key.description}
        if key.enum:
            result["enum"] = [*key.enum, *([""] if key.default == "" else []), None]
        if key.path[-1].lower().endswith("port"):
            result |= {"minimum": 1, "maximum": 65535}
        return result

    properties = {name: node(value, (name,)) for name, value in values.items()}
    return {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "properties": properties}


def known(values: Mapping[str, Any], keys: Mapping[tuple[str, ...], Key]) -> dict[str, Any]:
    """What the templates compare given values with.

    A tree in which closed maps are maps, switches that are on by default are "on", and all else is true.
    """

    def node(value: Any, path: tuple[str, ...]) -> Any:
        key = keys.get(path)
        if isinstance(value, Mapping) and (key is None or not key.open):
            return {k: node(v, (*path, k)) for k, v in value.items()}
        return "on" if value is True else True

    # Parent charts share `global` with all that they contain.
    tree = {name: node(value, (name,)) for name, value in values.items()} | {"isolator-lib": True, "global": True}
    return {"tree": tree, "paths": sorted(".".join(path) for path in keys if path[0] in values)}


def table(keys: list[Key]) -> str:
    """Markdown table of keys."""
    lines = ["| key | default | what it does |\n", "|---|---|---|\n"]
    for key in keys:
        default = json.dumps(key.default) if key.default != "" else '""'
        accepted = f" One of {', '.join(f'`{value}`' for value in key.enum)}." if key.enum else ""
        lines.append(f"| `{'.'.join(key.path)}` | `{default}` | {key.description}{accepted} |\n")
    return "".join(lines)


def blocks(text: str) -> dict[str, str]:
    """Text of each top-level key with the comments above it."""
    result: dict[str, str] = {}
    pending: list[str] = []
    current = ""
    for line in text.splitlines(keepends=True):
        match = _KEY.match(line)
        if match and not match[1]:
            current = match[2]
            result[current] = "".join(pending) + line
            pending = []
        elif line.startswith("#") and not line.startswith("##"):
            pending.append(line)
        elif line.startswith(" "):
            result[current] += line
    return result


def _with_table(readme: str, content: str) -> str:
    before, rest = readme.split(BEGIN)
    return before + BEGIN + content + END + rest.split(END)[1]


def outputs() -> dict[Path, str]:
    """Content of every generated file."""
    text = (UMBRELLA / "values.yaml").read_text()
    every = list(read_keys(text))
    keys = {key.path: key for key in every}
    parts = blocks(text)
    result: dict[Path, str] = {}
    charts = {UMBRELLA: (text, tuple(parts))}
    for name, own in THIN.items():
        chosen = tuple(part for part in parts if part in (*EVERYWHERE, *own))
        thin = "".join(parts[part] for part in chosen).replace(
            OFF_IN_UMBRELLA, OFF_IN_UMBRELLA.replace("false", "true")
        )
        header = "## Made from the umbrella chart's values.yaml by `python -m deploy.helm.generate`.\n\n"
        charts[HERE / name] = (header + thin, chosen)
        result[HERE / name / "values.yaml"] = header + thin
    for folder in (UMBRELLA, HERE / "monitor"):
        result |= {folder / "files" / name: (MONITOR / source).read_text() for name, source in FILES.items()}
    for folder, (content, chosen) in charts.items():
        values = yaml.safe_load(content)
        own_keys = [replace(key, default=_look_up(values, key.path)) for key in every if key.path[0] in chosen]
        result[folder / "values.schema.json"] = json.dumps(schema(values, keys), indent=1) + "\n"
        result[folder / "known.json"] = json.dumps(known(values, keys), indent=1) + "\n"
        result[folder / "README.md"] = _with_table((folder / "README.md").read_text(), table(own_keys))
    return result


def _look_up(values: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        values = values[name]
    return values


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    stale = [path for path, content in outputs().items() if not path.exists() or path.read_text() != content]
    for path in stale:
        if arguments:
            name = path.relative_to(HERE.parent.parent)
            print(f"{name} is stale: run `python -m deploy.helm.generate`", file=sys.stderr)
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_text(outputs()[path])
    return 1 if arguments and stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
