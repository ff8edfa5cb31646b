"""Tests what `moorage check` says of workers of which one is active and others stand by."""

from __future__ import annotations

from typing import Any

from moorage.cli.commands.check import _workers


def worker(role: str, behind: int = 0, kind: str = "placement") -> dict[str, Any]:
    return {"kind": kind, "pid": "7", "version": "1", "ok": True, "missing": "", "role": role, "behind": behind}


def rows(*workers: dict[str, Any], expected: tuple[str, ...] = ()) -> list[tuple[str, str, str]]:
    found = _workers({"workers": list(workers), "expected": list(expected)}, None)
    return [(row["name"], row["state"], row["detail"].partition("version 1")[2] or row["detail"]) for row in found]


def test_one_is_active_and_others_stand_by() -> None:
    found = rows(worker("active"), worker("standby"))
    assert found == [("placement", "ok", ", active"), ("placement", "ok", ", standby")]


def test_nobody_is_active() -> None:
    found = rows(worker("standby"), worker("", kind="topology"))
    assert found[-1] == ("placement", "unhealthy", "all stand by, none is active") and len(found) == 3


def test_one_is_behind_the_decision_log() -> None:
    assert rows(worker("active", behind=5)) == [("placement", "ok", ", active")]
    assert rows(worker("active", behind=5000)) == [
        ("placement", "unhealthy", ", active, 5000 commits behind the decision log")
    ]


def test_one_cannot_be_reached() -> None:
    assert rows(worker("active"), expected=("placement", "topology"))[-1] == (
        "topology",
        "down",
        "does not answer on the bus",
    )
