"""Tables: they fit the terminal, stay aligned as rows are added, and count wide characters as a terminal shows them."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import time
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moorage.cli import table as tables
from moorage.cli.durations import age
from moorage.cli.resource_types import resolve
from moorage.cli.table import Table, cut, one_line, shrunk, table, width_of


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Pretends that stdout is a terminal of so many columns."""
    return lambda columns: monkeypatch.setattr(tables, "terminal_width", lambda: columns)


def starts(line: str) -> list[int]:
    """Returns where cells begin, in columns of the terminal."""
    found, column, gap = [], 0, 3
    for char in line:
        if char == " ":
            gap += 1
        else:
            if gap >= 3:
                found.append(column)
            gap = 0
        column += width_of(char)
    return found


def test_nothing_is_cut_where_there_is_no_terminal() -> None:
    text = table(["NAME", "LABELS"], [["a", "x" * 500]])
    assert "x" * 500 in text and "…" not in text


def test_columns_shrink_to_the_terminal_and_names_last(terminal: Any) -> None:
    terminal(40)
    made = Table(["NAME", "STATE", "LABELS"], names=[0])
    lines = made.lines([["lab/a-cluster-of-some-length", "Ready", "region=eu,site=hamburg"]])
    assert all(width_of(line) <= 40 for line in lines)
    assert "lab/a-cluster-of-some" in lines[1] and lines[1].endswith("…")


def test_rows_that_come_later_are_aligned_with_the_first_ones(terminal: Any) -> None:
    for columns in (None, 60, 200):
        terminal(columns)
        made = Table(["NAME", "PHASE", "CLUSTERS"], stream=True, least=[0, 11])
        lines = made.lines([["default/shop", "Running", "lab/edge-1"]])
        lines += made.lines([["a", "Terminating", "-"]])
        lines += made.lines([["x" * 100, "Running", ",".join(["lab/edge-1"] * 9)]])
        lines += made.lines([["b", "Running", "-"]])
        aligned = [*lines[:3], *lines[4:]] if columns is None else lines
        assert [starts(line) for line in aligned] == [starts(lines[0])] * len(aligned)
        assert columns is None or (all(width_of(line) <= columns for line in lines) and "…" in lines[3])


def test_wide_characters_take_two_columns(terminal: Any) -> None:
    lines = Table(["NAME", "PHASE"]).lines([["漢字漢字", "Running"], ["é", "Running"], ["latin", "Running"]])
    assert [starts(line) for line in lines] == [[0, 11]] * 4
    terminal(16)
    lines = Table(["NAME", "PHASE"]).lines([["漢字漢字漢字", "Running"]])
    assert all(width_of(line) <= 16 for line in lines) and starts(lines[0]) == starts(lines[1])


def test_control_characters_do_not_reach_the_terminal() -> None:
    assert one_line("a\x1b[31mred\nnext\tcell\u2028") == "a [31mred next cell "
    assert len(table(["A"], [["x\ny"]]).splitlines()) == 2


@given(st.text(max_size=40), st.integers(1, 40))
def test_cut_text_is_never_wider(text: str, width: int) -> None:
    found = cut(one_line(text), width)
    assert width_of(found) <= width
    assert found == one_line(text) or found.endswith("…")


@given(st.lists(st.integers(0, 200), min_size=1, max_size=12), st.integers(1, 300), st.sets(st.integers(0, 11)))
def test_shrunk_columns_fit_if_they_can(widths: list[int], available: int, named: set[int]) -> None:
    names = [i for i in sorted(named) if i < len(widths)]
    found = shrunk(widths, available, names)
    room = available - 3 * (len(widths) - 1)
    assert all(0 <= f <= w for f, w in zip(found, widths, strict=True))
    assert sum(found) <= max(room, sum(min(5, w) for w in widths))
    if sum(widths) <= room:
        assert found == widths
    elif any(found[i] < widths[i] for i in names):
        assert all(found[i] == min(5, w) for i, w in enumerate(widths) if i not in names), (
            "the others gave all they had"
        )


def test_a_real_terminal_is_not_overrun() -> None:
    """Prints tables to a pseudo-terminal of 50 columns."""
    code = (
        "from moorage.cli.table import table; from moorage.cli.terminal import out;"
        "out(table(['NAME', 'STATE', 'LABELS'], [['lab/edge-1', 'Ready', 'x' * 300]]))"
    )
    main, other = pty.openpty()
    env = {**os.environ, "COLUMNS": "50"}
    with subprocess.Popen([sys.executable, "-c", code], stdout=other, env=env) as process:
        os.close(other)
        text = b""
        while process.poll() is None or not text.endswith(b"\n"):
            try:
                text += os.read(main, 4096)
            except OSError:
                break
    os.close(main)
    lines = text.decode().replace("\x1b[32m", "").replace("\x1b[0m", "").splitlines()
    assert lines[1].startswith("lab/edge-1   Ready   xxx") and lines[1].endswith("…") and len(lines[1]) == 50


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (119, "119s"), (150, "2m30s"), (180, "3m"), (3600, "60m"), (4 * 3600, "4h"), (5 * 3600 + 1800, "5h30m"),
     (30 * 3600, "30h"), (3 * 86400, "3d"), (3 * 86400 + 7200, "3d2h"), (400 * 86400, "400d")],
)  # fmt: skip
def test_ages_as_kubectl_writes_them(seconds: int, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_800_000_000.0
    monkeypatch.setattr(time, "time", lambda: now)
    since = datetime.fromtimestamp(now - seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    assert age(since) == text


def test_without_a_time_or_with_one_to_come_there_is_an_age_all_the_same() -> None:
    assert age("") == age(None) == ""
    assert age("2999-01-01T00:00:00Z") == "0s", "the clock of an agent may be ahead"


def test_clusters_have_a_column_for_each_resource() -> None:
    items = [
        {"id": "a/1", "state": "Ready", "nodes": 1, "allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110",
         "nvidia.com/gpu": "2"}, "used": {"cpu": "500m", "memory": "6Gi", "pods": "3", "nvidia.com/gpu": "2"}},
        {"id": "a/2", "state": "Ready", "nodes": 1, "allocatable": {"cpu": "4", "amd.com/gpu": "1", "x.io/fpga": "0"},
         "used": {"cpu": "6"}},
    ]  # fmt: skip
    columns = [c for c in resolve("clusters").columns_for(items) if not c.wide]
    assert [c.title for c in columns] == [
        "CLUSTER", "STATE", "NODES", "CPU", "MEMORY", "AMD.COM/GPU", "NVIDIA.COM/GPU", "FPGA", "AGE", "REPORT",
    ]  # fmt: skip
    cells = {c.title: [c.value(item) for item in items] for c in columns}
    assert cells["CPU"] == ["500m/4 12%", "6/4 150%"] and cells["MEMORY"] == ["6Gi/8Gi 75%", ""]
    assert cells["NVIDIA.COM/GPU"] == ["2/2 100%", ""] and cells["FPGA"] == ["", "0/0 0%"]
    assert cells["AGE"] == cells["REPORT"] == ["", ""], "a mesh of an earlier version does not say"
