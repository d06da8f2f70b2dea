"""Settings and commands: flags over environment over defaults, and one clear line when one is wrong.

A program is a list of `Command`s. Each has a `Settings` model; every field of it is a flag (`--listen-port`) and an
environment variable (`ISOLATOR_WEBHOOK_LISTEN_PORT`), both explained by `--help` from the field's description.
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NoReturn, TypeVar, get_args, get_origin

from pydantic import BeforeValidator, Field, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, SettingsConfigDict

from isolator_core import logs
from isolator_core.errors import SettingsError, UserError


def _split_commas(value: object) -> object:
    if not isinstance(value, str):
        return value
    return [part for part in map(str.strip, value.split(",")) if part]


PathList = Annotated[tuple[Path, ...], BeforeValidator(_split_commas)]
"""Several paths: the flag repeated, or the variable with commas."""

StringList = Annotated[tuple[str, ...], BeforeValidator(_split_commas)]
"""Several strings: the flag repeated, or the variable with commas."""


class Positional:
    """Marks a field that is given by position instead of by a flag."""


class Settings(BaseSettings):
    """Base of every command's settings."""

    model_config = SettingsConfigDict(extra="forbid", frozen=True, populate_by_name=True, enable_decoding=False)

    log_level: logs.Level = Field("info", description="least level that is logged")


S = TypeVar("S", bound=Settings)


@dataclass(frozen=True)
class Command(Generic[S]):
    """One sub-command: its name, a sentence of help, its settings and what it does (returns the exit status)."""

    name: str
    help: str
    settings: type[S]
    run: Callable[[S], int]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise SettingsError(f"{message} (see `{self.prog} --help`)")


def _env_name(prefix: str, name: str, field: FieldInfo) -> str:
    alias = field.validation_alias
    return alias if isinstance(alias, str) else f"{prefix}{name.upper()}"


def _flag(name: str) -> str:
    return "--" + name.rstrip("_").replace("_", "-")


def _is_positional(field: FieldInfo) -> bool:
    return any(isinstance(mark, Positional) for mark in field.metadata)


def _choices(annotation: Any) -> tuple[str, ...]:
    """What a field accepts, where that is one of a few words."""
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    return tuple(annotation) if isinstance(annotation, type) and issubclass(annotation, StrEnum) else ()


def _add_field(parser: argparse.ArgumentParser, prefix: str, name: str, field: FieldInfo) -> None:
    text = (field.description or "").replace("%", "%%")
    if _is_positional(field):
        parser.add_argument(name, metavar=name.upper(), help=text)
        return
    default = "" if field.is_required() or field.default in (None, ()) else f"; default {field.default}"
    options: dict[str, Any] = {
        "dest": name,
        "default": argparse.SUPPRESS,
        "help": f"{text} [{_env_name(prefix, name, field)}{default}]",
    }
    if field.annotation is bool:
        options["action"] = argparse.BooleanOptionalAction
    else:
        choices = _choices(field.annotation)
        options["metavar"] = f"{{{','.join(choices)}}}" if choices else name.rpartition("_")[2].upper()
        if get_origin(field.annotation) is tuple:
            options["action"] = "append"
    parser.add_argument(_flag(name), **options)


def _explain(prefix: str, settings: type[Settings], error: ValidationError) -> str:
    problems = []
    for problem in error.errors(include_url=False):
        name = str(problem["loc"][0]) if problem["loc"] else ""
        # A problem is reported under the alias where a field has one.
        names = {_env_name(prefix, key, field): key for key, field in settings.model_fields.items()}
        name = names.get(name, name)
        field = settings.model_fields.get(name)
        message = problem["msg"].removeprefix("Value error, ")
        if field is None:
            problems.append(message)
            continue
        where = f"{_flag(name)} ({_env_name(prefix, name, field)})"
        if problem["type"] == "missing":
            problems.append(f"{where} is required: {field.description}")
        else:
            problems.append(f"{where} is {problem['input']!r}: {message}")
    return "; ".join(problems)


def _refuse_unknown(prefix: str, commands: Iterable[Command[Any]], environment: Mapping[str, str]) -> None:
    known = {
        _env_name(prefix, name, field)
        for command in commands
        for name, field in command.settings.model_fields.items()
        if not _is_positional(field)
    }
    for variable in sorted(environment):
        if variable.startswith(prefix) and variable not in known:
            raise SettingsError(f"unknown environment variable {variable}; known are {', '.join(sorted(known))}")


def load(settings: type[S], prefix: str, given: Mapping[str, Any]) -> S:
    """Build settings from flags (`given`, by field name), then the environment, then defaults.

    Raises SettingsError with one line that names each wrong setting, its value and what is accepted.
    """
    try:
        return settings(_env_prefix=prefix, **given)
    except ValidationError as error:
        raise SettingsError(_explain(prefix, settings, error)) from error


def main(
    program: str,
    prefix: str,
    description: str,
    commands: Sequence[Command[Any]],
    arguments: Sequence[str] | None = None,
) -> int:
    """Run one command of a program and return its exit status: 2 for wrong settings, with one line on stderr."""
    parser = _Parser(prog=program, description=description, allow_abbrev=False)
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in commands:
        subparser = subparsers.add_parser(command.name, help=command.help, description=command.help, allow_abbrev=False)
        for name, field in command.settings.model_fields.items():
            _add_field(subparser, prefix, name, field)
    try:
        parsed, unknown = parser.parse_known_args(arguments)
        given = vars(parsed)
        name = given.pop("command")
        if unknown:
            subparsers.choices[name].error(f"unknown argument {unknown[0]}")
        chosen = next(command for command in commands if command.name == name)
        _refuse_unknown(prefix, commands, os.environ)
        settings = load(chosen.settings, prefix, given)
        logs.configure(program, settings.log_level)
        return chosen.run(settings)
    except UserError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return error.exit_status
    except BrokenPipeError:
        # The reader of our output has gone (`| head`); the interpreter's flush at exit must not complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
