"""Every command and document in the README and the pages runs, in the order in which a reader finds them, on the example's
fleet. The pages themselves say what cannot run here and why, in comments before the block:

    <!-- not run: REASON -->                        the block
    <!-- not run `moorage up`: REASON -->           a command in it
    <!-- exits 1 `moorage diff app1`: REASON -->
    <!-- until Ctrl-C `moorage events -f`: REASON -->"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from cyclopts import CycloptsError

import moorage.cli
from moorage.cli.main import build
from moorage_testkit.mesh import Mesh

ROOT = Path(__file__).parents[2]
FLEET = Path(moorage.cli.__path__[0]) / "example" / "fleet.yaml"
PAGES = ["README.md", *sorted(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md"))]
_BLOCK = re.compile(r"((?:<!-- .*? -->\n)*)\n?^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_MARKER = re.compile(r"<!-- (not run|exits \d|until Ctrl-C)(?: `(.+?)`)?: (.+?) -->")
#: Seconds after which a command that runs until Ctrl-C is ended. One that fails ends earlier.
_SECONDS = 3


class Marker(NamedTuple):
    what: str
    command: str
    reason: str


class Block(NamedTuple):
    language: str
    text: str
    markers: list[Marker]

    def marker(self, command: str) -> Marker | None:
        return next((m for m in self.markers if not m.command or command.startswith(m.command)), None)

    @property
    def commands(self) -> list[str]:
        lines = [line.removeprefix("$ ") for line in self.text.splitlines()]
        return [line for line in lines if line.strip() and not line.startswith("#")]


def blocks(page: str) -> Iterator[Block]:
    for comments, language, text in _BLOCK.findall((ROOT / page).read_text()):
        if language in ("sh", "console", "yaml", "python"):
            yield Block(language, text, [Marker(*found) for found in _MARKER.findall(comments)])


@pytest.fixture(scope="module")
def mesh() -> Iterator[Mesh]:
    with Mesh("--example") as mesh:
        yield mesh


@pytest.fixture
def reader(mesh: Mesh, tmp_path: Path) -> Iterator[Any]:
    """Runs lines as somebody does who reads a page, in a directory of their own. Afterwards the mesh is as it was."""
    scripts = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{scripts}:{os.environ['PATH']}", "MOORAGE_STATE": str(mesh.state)}

    def run(lines: list[str]) -> None:
        done = subprocess.run(
            ["bash", "--norc", "-e", "-c", "\n".join(lines)],
            env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=250, check=False,
        )  # fmt: skip
        assert done.returncode == 0, "\n".join([*lines, f"exit code {done.returncode}", done.stdout, done.stderr])
        assert "Traceback" not in done.stderr

    run.directory = tmp_path  # type: ignore[attr-defined]
    yield run
    for item in mesh.http("/v1/intents")["items"]:
        mesh.run("delete", item["kind"], item["metadata"]["name"])
    for item in mesh.http("/v1/applications")["items"]:
        if item["metadata"]["name"] != "app1":
            mesh.run("delete", "application", item["metadata"]["name"])
    assert mesh.run("fleet", "apply", str(FLEET), "--yes").returncode == 0


def line_for(command: str, marker: Marker | None) -> str:
    """Returns the line of a script that runs a command and checks how it ends."""
    plain = re.sub(r"\s+#\s.*$", "", command)
    if marker is None:
        return plain
    if marker.what == "until Ctrl-C":
        return f"timeout -s INT {_SECONDS} {plain} || [ $? = 124 ]"
    return f"code=0; {plain} || code=$?; [ $code = {marker.what.split()[1]} ]"


def save(directory: Path, block: Block) -> str:
    """Saves a block under the name in its first line, `# name.yaml`. Returns the name; "" without one."""
    named = re.match(r"# (\S+\.(?:yaml|py))\n", block.text)
    if named is not None:
        (directory / named[1]).write_text(block.text)
    return "" if named is None else named[1]


def documents(block: Block, name: str) -> list[str]:
    """Returns what applies the documents of a block that has no name: those with one are applied by the page's commands."""
    if name:
        return []
    lines = []
    for number, body in enumerate(yaml.safe_load_all(block.text)):
        file = f"document-{number}.yaml"
        text = shlex.quote(yaml.safe_dump(body))
        verb = "fleet apply --yes" if body.get("kind") == "Fleet" else "apply -f"
        lines += [f"printf %s {text} > {file}", f"moorage {verb} {file}"]
    return lines


@pytest.mark.parametrize("page", [page for page in PAGES if list(blocks(page))])
def test_a_page_runs_from_top_to_bottom(page: str, reader: Any) -> None:
    for block in blocks(page):
        name = save(reader.directory, block)
        if any(m.what == "not run" and not m.command for m in block.markers) or block.language == "python":
            continue
        if block.language == "yaml":
            reader(documents(block, name))
            continue
        lines = [(command, block.marker(command)) for command in block.commands]
        reader([line_for(command, m) for command, m in lines if m is None or m.what != "not run"])


@pytest.mark.parametrize("page", PAGES)
def test_markers_give_reasons_for_commands_that_are_there(page: str) -> None:
    text = (ROOT / page).read_text()
    markers = [m for block in blocks(page) for m in block.markers]
    assert len(markers) == len(_MARKER.findall(text)), "a marker that is not before a block"
    for block in blocks(page):
        for marker in block.markers:
            assert len(marker.reason.split()) >= 3, marker
            assert not marker.command or any(c.startswith(marker.command) for c in block.commands), marker


# --- commands in the text ----------------------------------------------------------------------------------------------

#: Placeholders of commands in the text, and what may stand there.
_PLACEHOLDERS = {
    "FAULT": "silent", "N": "1", "M": "1", "S": "1", "ROLE": "viewer", "KIND.path": "application", "FILE": str(FLEET),
    "KIND=NUMBER": "merger=2",
}  # fmt: skip


def inline(page: str) -> list[str]:
    text = re.sub(r"^```.*?^```", "", (ROOT / page).read_text(), flags=re.MULTILINE | re.DOTALL)
    return sorted(
        {found for found in re.findall(r"`([^`]+)`", text.replace("\n", " ")) if found.startswith("moorage ")}
    )


@pytest.mark.parametrize(("page", "command"), [(page, command) for page in PAGES for command in inline(page)])
def test_commands_in_the_text_are_accepted(page: str, command: str) -> None:
    plain = re.sub(r"[\[\]…]|\$\(.*\)|COMMAND", "", command)
    words = [_PLACEHOLDERS.get(word, word) for word in shlex.split(plain)[1:]]
    words = [word for word in words if word != "--help"]
    try:
        build(words).parse_args(words, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        # The text may leave arguments out, but it names no commands, options and values that do not exist.
        assert type(error).__name__ == "MissingArgumentError", f"{page}: {command}: {error}"
