"""Tests completion in a real bash: commands and options come from the script, names from the running mesh."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from moorage_testkit.mesh import Mesh

SCRIPTS = Path(sys.executable).parent


def completed(line: str, state: Path) -> list[str]:
    """Returns the completions with the cursor at the end of the line."""
    words = shlex.split(line) + ([""] if line.endswith(" ") else [])
    script = f"""
        source <(moorage completion bash)
        spec=$(complete -p moorage)
        COMP_WORDS=({" ".join(shlex.quote(word) for word in words)})
        COMP_CWORD={len(words) - 1}
        COMP_LINE={shlex.quote(line)}
        COMP_POINT={len(line)}
        [[ $spec =~ -F\\ ([^ ]+) ]] && "${{BASH_REMATCH[1]}}"
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    path = f"{SCRIPTS}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "MOORAGE_STATE": str(state)}
    env.pop("MOORAGE_URL", None)
    done = subprocess.run(
        ["bash", "--norc", "-c", script], env=env, capture_output=True, text=True, timeout=60, check=True
    )
    assert not done.stderr, done.stderr
    return sorted(filter(None, done.stdout.split("\n")))


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("moorage app", ["apply", "approve"]),
        ("moorage cluster un", ["uncordon"]),
        ("moorage why --pro", ["--project"]),
        ("moorage get groups -o ", ["json", "name", "table", "wide", "yaml"]),
        ("moorage token create x --role ", ["admin", "editor", "viewer"]),
        ("moorage get clu", ["cluster", "clusters"]),
        ("moorage delete hp", ["hpaintent"]),
        ("moorage get application ap", ["app1"]),
        ("moorage describe cluster telco/", ["telco/core-1", "telco/pop-1", "telco/pop-2"]),
        ("moorage describe controller l", ["labels"]),
        ("moorage get controllers l", ["labels"]),
        ("moorage explain application.spec.apps.con", ["application.spec.apps.consumers"]),
        ("moorage explain app", ["application", "application."]),
        ("moorage why ap", ["app1"]),
        ("moorage why -p other default/", ["default/app1/v1/default"]),
        ("moorage describe clusters lab/edge-", ["lab/edge-1", "lab/edge-2", "lab/edge-3"]),
        ("moorage get node telco/pop-2", ["telco/pop-2/qat-node"]),
        ("moorage cluster cordon telco/pop", ["telco/pop-1", "telco/pop-2"]),
        ("moorage delete application ", ["app1"]),
        ("moorage controllers set h", ["hpa"]),
    ],
)
def test_bash_completes_commands_options_and_names(example: Mesh, line: str, offered: list[str]) -> None:
    found = completed(line, example.state)
    if "app1" in offered:  # other tests have applications of their own on this mesh
        assert "app1" in found and all(name.startswith(line.split(" ")[-1]) for name in found)
    else:
        assert found == offered


def test_without_a_mesh_there_are_no_names_and_no_errors(tmp_path: Path) -> None:
    assert completed("moorage why ", tmp_path) == []
    assert completed("moorage get no", tmp_path) == ["node", "nodes"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_a_script(shell: str, example: Mesh) -> None:
    done = example.run("completion", shell)
    assert done.returncode == 0 and b"moorage" in done.stdout and b"__complete" in done.stdout


def test_an_unknown_shell_is_refused(example: Mesh) -> None:
    assert example.run("completion", "tcsh").returncode == 2
