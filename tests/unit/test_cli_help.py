"""Help: three groups of commands, and examples of each command that its own parser accepts."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import pytest
from cyclopts import App

from moorage.cli.examples import EXAMPLES, examples_text
from moorage.cli.main import build, run


def commands(app: App, above: tuple[str, ...] = ()) -> Iterator[str]:
    for name in app:
        if name.startswith("-"):
            continue
        yield " ".join((*above, name))
        yield from commands(app[name], (*above, name))


ALL = sorted(commands(build([])))


def test_the_overview_has_three_groups_and_no_other_box(capsys: pytest.CaptureFixture[str]) -> None:
    for argv in (["--help"], ["-h"], []):
        assert run(argv) == 0
        text = capsys.readouterr().out
        assert re.findall(r"╭─ (\w+)", text) == ["Inspect", "Manage", "Run"]
        assert "moorage apply -f shop.yaml" in text


@pytest.mark.parametrize("command", ALL)
def test_each_help_has_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*command.split(), "--help"]) == 0
    text = capsys.readouterr().out
    assert EXAMPLES[command][0].partition("  #")[0] in text.partition("Examples:")[2]


def test_there_are_examples_of_commands_only() -> None:
    assert set(EXAMPLES) - {""} == set(ALL)


@pytest.mark.parametrize(
    ("command", "line"), [(command, line) for command, lines in EXAMPLES.items() for line in lines]
)
def test_examples_are_accepted(command: str, line: str) -> None:
    line = re.sub(r"^export \w+=\$\((.*)\)$|^source <\((.*)\)$", r"\1\2", line.partition("  #")[0]).partition(" > ")[0]
    name, *words = shlex.split(line)
    assert name == "moorage"
    build(words).parse_args(words, exit_on_error=False, print_error=False)


def test_examples_of_a_command_with_a_value() -> None:
    assert "moorage cluster drain" in examples_text(["cluster", "drain", "lab/edge-1", "--help"])
    assert "moorage get clusters" in examples_text(["get", "--help"])
