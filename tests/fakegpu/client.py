"""The other end of machine.Process: runs what it reads, a JSON string a line, and answers in JSON."""

from __future__ import annotations

import ast
import json
import sys
import traceback
from typing import Any


def ok(answer: tuple[Any, ...]) -> Any:
    """What a driver call gave besides CUDA_SUCCESS."""
    error, *values = answer
    if int(error) != 0:
        raise RuntimeError(error.name)
    return values[0] if len(values) == 1 else tuple(values) if values else None


def code(answer: tuple[Any, ...]) -> str:
    """Name of a driver call's result, without its prefix."""
    return str(answer[0].name).removeprefix("CUDA_ERROR_").removeprefix("CUDA_")


def plain(value: Any) -> Any:
    """A JSON value for anything."""
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes):
        return value.rstrip(b"\0 ").decode()
    try:
        return int(value)
    except (TypeError, ValueError):
        return str(value)


def evaluate(source: str, names: dict[str, Any]) -> Any:
    try:
        tree: ast.Expression | ast.Module = ast.parse(source, mode="eval")
    except SyntaxError:
        exec(compile(ast.parse(source), "<test>", "exec"), names)  # noqa: S102 - the test's own source
        return None
    return eval(compile(tree, "<test>", "eval"), names)


def main() -> None:
    import pynvml
    from cuda.bindings import driver

    names: dict[str, Any] = {"d": driver, "n": pynvml, "ok": ok, "code": code}
    for line in sys.stdin:
        try:
            answer = {"value": plain(evaluate(json.loads(line), names))}
        except Exception:
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
