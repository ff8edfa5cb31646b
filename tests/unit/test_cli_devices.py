"""`moorage devices replay`: figures, placements, and what is wrong with files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from moorage.cli.main import run

_NODES = "sn,cpu_milli,memory_mib,gpu,model\nn0,8000,1000,2,A\nn1,8000,1000,1,B\nn2,4000,1000,0,\n"
_TASKS = """name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos
half,1000,10,1,460,,LS
pair,1000,10,2,1000,,LS
bound,1000,10,1,1000,B|C,LS
none,4000,10,0,0,,BE
rest,1000,10,1,540,A,LS
"""


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    (tmp_path / "nodes.csv").write_text(_NODES)
    (tmp_path / "tasks.csv").write_text(_TASKS)
    return ["devices", "replay", "--nodes", str(tmp_path / "nodes.csv"), "--tasks", str(tmp_path / "tasks.csv")]


def test_a_replay_tells_what_was_placed_where(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = tmp_path / "placements.csv"
    assert run([*files, "--algorithm", "first-fit", "--placements", str(wanted), "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found.pop("perDecisionMs").keys() == {"p50", "p99"}
    assert found == {"algorithm": "first-fit", "tasks": 5, "placed": 4, "allocatedPercent": 66.6667}
    assert wanted.read_text() == "task,node,gpus\nhalf,n0,0:460\npair,,\nbound,n1,0:1000\nnone,n0,\nrest,n0,0:540\n"


def test_devices_of_a_pair_are_listed_in_order(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tasks.csv").write_text(_TASKS.replace("half,1000,10,1,460", "half,1000,10,0,0"))
    assert run([*files, "--placements", str(tmp_path / "out.csv")]) == 0
    assert "pair,n0,0:1000 1:1000\n" in (tmp_path / "out.csv").read_text()


def test_several_algorithms_are_a_list_in_the_order_given(files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*files, "--algorithm", "fgd", "default", "--algorithm", "spread", "-o", "json"]) == 0
    assert [one["algorithm"] for one in json.loads(capsys.readouterr().out)] == ["fgd", "default", "spread"]
    assert run(files) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:4] == ["ALGORITHM", "TASKS", "PLACED", "ALLOCATED"] and lines[1].startswith("default")


@pytest.mark.parametrize(
    ("nodes", "tasks", "message"),
    [
        ("sn,cpu_milli\n", _TASKS, "nodes.csv: line 1: the columns memory_mib, gpu, model are missing"),
        (_NODES.replace("n1,8000", "n1,-1"), _TASKS, "nodes.csv: line 3, column cpu_milli: '-1' is no whole number"),
        (_NODES.replace("n1", "n0"), _TASKS, "nodes.csv: column sn: two nodes have one name"),
        (
            _NODES,
            _TASKS.replace("460", "1460"),
            "tasks.csv: line 2, column gpu_milli: '1460' is no whole number from 0",
        ),
        (_NODES, _TASKS.replace("460", "0"), "tasks.csv: line 2, column gpu_milli: it must be 1 to 1000"),
        (_NODES, _TASKS + "short,1000\n", "tasks.csv: line 7, column num_gpu: '' is no whole number"),
    ],
)
def test_what_is_wrong_with_a_file_is_told_with_its_place(
    files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], nodes: str, tasks: str, message: str
) -> None:
    (tmp_path / "nodes.csv").write_text(nodes)
    (tmp_path / "tasks.csv").write_text(tasks)
    assert run(files) == 1
    assert message in capsys.readouterr().err


def test_wrong_use_is_told(files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*files, "--algorithm", "worst-fit"]) == 2
    assert "no algorithm is called 'worst-fit'; there are default, aligned, best-fit" in capsys.readouterr().err
    assert run([*files, "--algorithm", "fgd", "spread", "--placements", str(tmp_path / "out")]) == 2
    assert "--placements is for one algorithm" in capsys.readouterr().err
    assert run([*files[:-1], str(tmp_path / "gone.csv")]) == 1
    assert "cannot read" in capsys.readouterr().err


def test_a_trace_without_nodes_drops_all(files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "nodes.csv").write_text(_NODES.splitlines()[0] + "\n")
    for name in ("default", "best-fit", "spread", "aligned"):
        assert run([*files, "--algorithm", name, "-o", "json"]) == 0
        assert json.loads(capsys.readouterr().out)["placed"] == 0
