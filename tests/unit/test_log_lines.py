"""`moorage logs` reads what the processes of a local mesh write."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest

from moorage.cli.commands.logs import logs
from moorage.cli.exit_codes import Failure
from moorage.cli.log_lines import LogFile, parse
from moorage.cli.up import processes
from moorage.cli.up.processes import limit_log


def entry(event: str, at: str = "2026-01-02T03:04:05.678901Z", **fields: object) -> str:
    return json.dumps({"event": event, "level": "info", "timestamp": at, **fields})


def test_lines_of_workers_have_time_level_and_fields() -> None:
    (line,) = parse([entry("placed", group="default/a/v1/default", detail="two words", worker="merger")], "merger", 0)
    assert line.time == datetime.fromisoformat("2026-01-02T03:04:05.678901Z").timestamp()
    assert (line.level, line.text) == ("info", 'placed group=default/a/v1/default detail="two words"')


def test_lines_of_brokers_have_time_and_level() -> None:
    nats, valkey = "[7] 2026/01/02 03:04:05.678901 [ERR] no", "7:M 02 Jan 2026 03:04:05.678 # careful"
    lines = [*parse([nats], "nats", 0), *parse([valkey], "redis", 0)]
    assert [(line.level, line.text) for line in lines] == [("error", "no"), ("warning", "careful")]
    assert round(lines[0].time - lines[1].time, 3) == 0.001


def test_a_traceback_stays_together() -> None:
    lines = ["before", entry("one"), "Traceback:", "  File", "Error", entry("two"), "{not json", "[]"]
    found = [line.text for line in parse(lines, "merger", 7.0)]
    assert found == ["before", "one", "Traceback:\n  File\nError", "two", "{not json\n[]"]
    assert next(parse(lines, "merger", 7.0)).time == 7.0


def test_a_file_is_read_on_from_where_it_was_read(tmp_path: Path) -> None:
    path = tmp_path / "merger.log"
    file = LogFile(path)
    assert file.read_new() == []
    path.write_text(entry("one") + "\n" + entry("two")[:20])
    assert [line.text for line in file.read_new()] == ["one"]
    with path.open("a") as end:
        end.write(entry("two")[20:] + "\n")
    assert [line.text for line in file.read_new()] == ["two"]
    path.write_text(entry("three") + "\n")
    assert [line.text for line in file.read_new()] == ["three"], "the file was emptied"


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Makes a state directory with logs of two workers."""
    (tmp_path / "logs").mkdir()
    now = datetime.now().astimezone().isoformat()
    (tmp_path / "logs/merger.log").write_text(f"{entry('one')}\n{entry('three', '2026-01-02T03:04:07Z')}\n")
    second = entry("two", "2026-01-02T03:04:06Z")
    (tmp_path / "logs/merger-1.log").write_text(f"{second}\n{entry('now', now)}\n")
    (tmp_path / "logs/hpa.log").write_text(entry("other", "2026-01-02T03:04:08Z") + "\n")
    return tmp_path


def events(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [json.loads(line)["event"] for line in capsys.readouterr().out.splitlines()]


def test_lines_of_all_files_are_in_the_order_of_time(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, expected in (
        ({}, ["one", "two", "three", "other", "now"]),
        ({"tail": 2}, ["other", "now"]),
        ({"tail": 0}, []),
        ({"since": "10m"}, ["now"]),
    ):
        assert logs(state=state, output="json", **arguments) == 0
        assert events(capsys) == expected
    logs("merger", state=state, output="json")
    assert events(capsys) == ["one", "two", "three", "now"]
    logs("merger-1", state=state)
    first, _ = capsys.readouterr().out.splitlines()
    assert first.split()[1:] == ["merger-1", "info", "two"]


def test_an_unknown_worker_is_refused_with_the_known_ones(state: Path, tmp_path: Path) -> None:
    with pytest.raises(Failure, match="there are hpa, merger, merger-1"):
        logs("merg", state=state)
    with pytest.raises(Failure, match="`moorage up` writes them there"):
        logs(state=tmp_path / "none")


def test_new_lines_are_followed(state: Path) -> None:
    command = [sys.executable, "-m", "moorage.cli", "logs", "-f", "--tail", "1", "--state", str(state), "-o", "json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["event"] == "now"
        (state / "logs/sim.log").write_text(entry("later") + "\n")
        assert json.loads(process.stdout.readline())["event"] == "later"
        process.terminate()


def test_a_log_that_is_too_large_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_MAX_LOG_BYTES", 10)
    log = tmp_path / "merger.log"
    limit_log(log)
    writer = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(writer, b"0123456789")
    limit_log(log)
    assert log.read_bytes() == b"0123456789"
    os.write(writer, b"x")
    limit_log(log)
    os.write(writer, b"new")
    os.close(writer)
    assert (log.read_bytes(), (tmp_path / "merger.log.1").read_bytes()) == (b"new", b"0123456789x")
