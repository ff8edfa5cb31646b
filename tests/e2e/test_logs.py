"""Tests what the workers log of decisions, documents and HTTP errors, and at which level."""

from __future__ import annotations

import json
from typing import Any

from moorage_testkit.mesh import Mesh
from moorage_testkit.mesh_client import application
from moorage_testkit.polling import wait_until

GROUP = "default/logged/v1/default"


def lines(mesh: Mesh, worker: str) -> list[dict[str, Any]]:
    done = mesh.run("logs", worker, "--tail", "100000", "-o", "json")
    assert done.returncode == 0, done.stderr.decode()
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_decisions_documents_and_errors_have_one_line_each() -> None:
    with Mesh("--example") as mesh:
        document = json.dumps(application("logged")).encode()
        assert mesh.run("apply", "-f", "-", data=document).returncode == 0
        assert mesh.run("wait", "logged", "--for", "phase=Running", "--timeout", "90s").returncode == 0
        assert mesh.run("get", "group", "nobody").returncode == 3
        assert mesh.run("apply", "-f", "-", data=document.replace(b"replicas", b"replicass", 1)).returncode == 1

        # Logs show an app a moment after `get` does.
        (placed,) = wait_until(lambda: [line for line in lines(mesh, "merger") if line.get("group") == GROUP])
        assert (placed["event"], placed["level"], placed["revision"]) == ("placed", "info", 1)
        assert list(placed["clusters"]) == ["web"] and placed["decision"] and placed["cause"]
        stored = [line for line in lines(mesh, "intents") if line.get("name") == "logged"]
        assert [(line["event"], line["outcome"]) for line in stored] == [("document applied", "created")]
        refused = wait_until(lambda: [line for line in lines(mesh, "intents") if line["event"] == "refused"])
        assert len(refused) == 1 and refused[0]["errors"]
        path = "/nobody/v1/default"
        errors = wait_until(lambda: [line for line in lines(mesh, "gateway") if line.get("path", "").endswith(path)])
        assert [(line["event"], line["method"], line["status"], line["code"]) for line in errors] == [
            ("request refused", "GET", 404, "NotFound")
        ]
        shown = mesh.run("logs").stdout.decode()
        assert all(f"  {worker} " in shown for worker in ("merger", "intents", "gateway", "nats", "redis"))


def test_the_level_comes_from_the_environment() -> None:
    mesh = Mesh("--example")
    mesh.environment["MOORAGE_LOG"] = "warning"
    with mesh:
        assert mesh.run("get", "group", "nobody").returncode == 3
        for worker in ("merger", "intents", "gateway"):
            assert {line["level"] for line in lines(mesh, worker)} <= {"warning", "error"}


def test_an_unknown_level_is_refused_with_the_known_ones() -> None:
    mesh = Mesh()
    mesh.environment["MOORAGE_LOG"] = "loud"
    try:
        done = mesh.run("up", "--http", "127.0.0.1:0")
        assert done.returncode == 2
        assert b"MOORAGE_LOG=loud is not one of debug, info, warning, error" in done.stderr
    finally:
        mesh.remove()
