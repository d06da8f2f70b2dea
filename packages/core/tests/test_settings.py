"""What a person meets who sets something wrong."""

from pathlib import Path
from typing import Annotated

import pytest
from pydantic import Field

from isolator_core.errors import UserError
from isolator_core.settings import Command, PathList, Positional, Settings, main

PREFIX = "ISOLATOR_SAMPLE_"


class Sample(Settings):
    listen_port: int = Field(8443, ge=1, le=65535, description="port to listen on")
    per_gpu: int | None = Field(None, description="MiB", validation_alias="PER_GPU_VRAM_MIB")
    roots: PathList = Field((), description="directories")
    strict: bool = Field(False, description="refuse more")
    key_file: Path = Field(description="private key")


class Review(Settings):
    manifest: Annotated[str, Positional()] = Field(description="file to read, - for standard input")


seen: list[Settings] = []


def remember(settings: Settings) -> int:
    seen.append(settings)
    return 0


def fail(_settings: Settings) -> int:
    raise UserError("the card is gone")


COMMANDS = [
    Command("serve", "Serve.", Sample, remember),
    Command("review", "Review.", Review, remember),
    Command("fail", "Fail.", Review, fail),
]


def run(*arguments: str) -> int:
    seen.clear()
    return main("isolator-sample", PREFIX, "A sample.", COMMANDS, arguments)


def settings(*arguments: str) -> Settings:
    assert run(*arguments) == 0
    return seen[0]


def test_flag_wins_over_environment_and_environment_over_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISOLATOR_SAMPLE_LISTEN_PORT", "1000")
    monkeypatch.setenv("ISOLATOR_SAMPLE_KEY_FILE", "/key")
    monkeypatch.setenv("ISOLATOR_SAMPLE_ROOTS", "/a,/b")
    monkeypatch.setenv("PER_GPU_VRAM_MIB", "15360")
    assert settings("serve") == Sample(
        listen_port=1000, key_file=Path("/key"), roots=(Path("/a"), Path("/b")), per_gpu=15360
    )
    assert settings("serve", "--listen-port", "2000", "--roots", "/c", "--strict", "--per-gpu", "7") == Sample(
        listen_port=2000, key_file=Path("/key"), roots=(Path("/c"),), per_gpu=7, strict=True
    )


@pytest.mark.parametrize("text", ["/a,/b", "/a, /b", " /a ,/b,, ", "/a,\n/b\n"])
def test_white_space_around_commas_is_nothing(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("ISOLATOR_SAMPLE_ROOTS", text)
    assert settings("serve", "--key-file", "/k") == Sample(key_file=Path("/k"), roots=(Path("/a"), Path("/b")))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["serve", "--key-file", "/k", "--listen-port", "70000"],
            ["--listen-port", "ISOLATOR_SAMPLE_LISTEN_PORT", "'70000'", "65535"],
        ),
        (["serve", "--key-file", "/k", "--per-gpu", "many"], ["--per-gpu", "PER_GPU_VRAM_MIB", "'many'", "integer"]),
        (["serve"], ["--key-file", "ISOLATOR_SAMPLE_KEY_FILE", "required", "private key"]),
        (["serve", "--key-file", "/k", "--log-level", "loud"], ["--log-level", "'loud'", "'debug'"]),
        (["serve", "--listen", "1"], ["unknown argument --listen", "serve --help"]),
        (["served"], ["'served'", "serve"]),
        ([], ["COMMAND"]),
        (["review"], ["MANIFEST"]),
    ],
)
def test_wrong_settings_end_with_2_and_one_line(
    arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("isolator-sample: ")
    for word in words:
        assert word in err


def test_unknown_variable_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("ISOLATOR_SAMPLE_LISTEN_PROT", "1000")
    assert run("review", "x") == 2
    assert "unknown environment variable ISOLATOR_SAMPLE_LISTEN_PROT" in capsys.readouterr().err


def test_error_of_a_command_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("fail", "x") == 1
    assert capsys.readouterr().err == "isolator-sample: the card is gone\n"


def test_help_names_flag_variable_and_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        run("serve", "--help")
    assert exit_.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "--listen-port PORT port to listen on [ISOLATOR_SAMPLE_LISTEN_PORT; default 8443]" in text
    assert "--strict" in text
    assert "--no-strict" in text
    assert "--log-level {debug,info,warning,error} least level" in text
