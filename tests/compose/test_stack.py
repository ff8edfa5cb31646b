"""compose.yaml on a real engine: used from the host as people use it, a worker killed, and what containers may do."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from moorage.mesh.discovery import installed

from .conftest import TOP, Stack

pytestmark = pytest.mark.timeout(900)
EXAMPLE = TOP / "services/moorage/cli/example/application.yaml"
ONCE = {"keys", "provision"}


def test_everything_runs_and_is_healthy(stack: Stack) -> None:
    """A worker that loses its lease while a busy machine starts the rest ends, and is started again."""
    workers = {*installed().workers, "nats", "redis", "edge-1", "edge-3", "pop-1"}
    wanted = dict.fromkeys(workers, ("running", "healthy")) | dict.fromkeys(ONCE, ("exited", 0))
    wait_for(lambda: {name: condition(name, found) for name, found in stack.containers().items()} == wanted, 180)
    clusters = json.loads(stack.moorage("get", "clusters", "-o", "json").stdout)["items"]
    assert {c["id"]: c["state"] for c in clusters} == {
        "lab/edge-1": "Ready",
        "lab/edge-3": "Ready",
        "telco/pop-1": "Ready",
    }
    wait_for(lambda: stack.moorage("check", check=False).returncode == 0, 180)


def test_nobody_may_more_than_needed(stack: Stack) -> None:
    """Checks the configuration of the containers, and the privileges of their processes in the kernel."""
    for name, container in stack.containers().items():
        host = container["HostConfig"]
        assert host["ReadonlyRootfs"] and host["CapDrop"] == ["ALL"] and not host["CapAdd"], name
        assert not host["Privileged"] and "no-new-privileges:true" in host["SecurityOpt"], name
        assert (host["RestartPolicy"]["Name"] == "unless-stopped") is (name not in ONCE), name
        pid = container["State"]["Pid"]
        if not pid:
            continue
        status = dict(
            line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line
        )
        assert set(status["Uid"].split()) == set(status["Gid"].split()) == {"65532"}, name
        assert {int(status[f"Cap{kind}"], 16) for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {0}, name
        assert status["NoNewPrivs"].strip() == "1", name
        root = next(
            line.split() for line in Path(f"/proc/{pid}/mounts").read_text().splitlines() if line.split()[1] == "/"
        )
        assert "ro" in root[3].split(","), name


def test_each_has_its_own_keys_only(stack: Stack) -> None:
    """A worker finds one seed; no two services share a volume but the one that makes the keys."""
    volumes: dict[str, list[str]] = {}
    for name, container in stack.containers().items():
        for mount in container["Mounts"]:
            if mount["Type"] == "volume":
                volumes.setdefault(mount["Name"], []).append(name)
    assert all(len(set(users) - {"keys"}) <= 1 for users in volumes.values()), volumes
    said = stack.compose("exec", "-T", "merger", "sh", "-c", "find / -name '*.nk' 2>/dev/null; true").split()
    assert said == ["/run/moorage/nats.nk"]
    with pytest.raises(RuntimeError, match=r"(?i)read-only"):
        stack.compose("exec", "-T", "merger", "sh", "-c", "echo > /run/moorage/nats.nk")


def test_the_example_runs_and_a_killed_worker_comes_back(stack: Stack) -> None:
    stack.moorage("apply", "-f", str(EXAMPLE))
    stack.moorage("wait", "app1", "--for", "phase=Running", "--timeout", "120s")
    placed = why(stack, "app1")
    apps = placed["apps"]
    assert apps["fwall"]["clusters"] == ["lab/edge-3"]
    assert apps["analytics"]["clusters"] == ["telco/pop-1"]

    # As a crash: the engine is not asked, so its restart policy counts.
    killed = ("merger", "inventory", "edge-3", "gateway")
    before = stack.containers()
    for name in killed:
        os.kill(before[name]["State"]["Pid"], signal.SIGKILL)
    wait_for(lambda: all(healthy(stack.containers()[name], before[name]) for name in killed), 180)
    wait_for(lambda: stack.moorage("check", check=False).returncode == 0, 180)

    # Nothing was decided anew, and what comes next is.
    assert why(stack, "app1")["decision"] == placed["decision"]
    small = json.dumps(
        {
            "apiVersion": "moorage.dev/v1alpha1",
            "kind": "Application",
            "metadata": {"name": "small"},
            "spec": {"apps": [{"name": "web", "manifests": [deployment("web", "500m")]}]},
        }
    )
    stack.moorage("apply", "-f", "-", data=small)
    stack.moorage("wait", "small", "--for", "phase=Running", "--timeout", "120s")
    stack.moorage("wait", "app1", "--for", "phase=Running", "--timeout", "120s")
    stack.moorage("delete", "application", "small")


def test_all_of_it_goes_and_comes_back_from_a_backup(stack: Stack) -> None:
    """The two commands of the page; and every worker ends on SIGTERM by itself, not killed after its grace period."""
    placed = why(stack, "app1")
    saved = stack.piped("run", "--rm", "-T", "provision", "backup", "-")
    stack.compose("stop", "-t", "60")  # however slow the machine is
    codes = {name: c["State"]["ExitCode"] for name, c in stack.containers().items()}
    assert set(codes.values()) == {0}, codes
    stack.compose("down", "-v")
    stack.piped("run", "--rm", "-T", "provision", "restore", "-", data=saved)
    stack.up()
    stack.moorage("wait", "app1", "--for", "phase=Running", "--timeout", "120s")
    assert why(stack, "app1")["decision"] == placed["decision"]
    wait_for(lambda: stack.moorage("check", check=False).returncode == 0, 180)


def why(stack: Stack, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(stack.moorage("why", name, "-o", "json").stdout)
    return found


def condition(name: str, container: dict[str, Any]) -> tuple[str, Any]:
    state = container["State"]
    return state["Status"], state["ExitCode"] if name in ONCE else state["Health"]["Status"]


def healthy(now: dict[str, Any], before: dict[str, Any]) -> bool:
    state = now["State"]
    return bool(state["Pid"]) and state["Pid"] != before["State"]["Pid"] and state["Health"]["Status"] == "healthy"


def wait_for(condition: Any, seconds: float) -> None:
    end = time.monotonic() + seconds
    while True:
        with contextlib.suppress(AssertionError):
            if condition():
                return
        assert time.monotonic() < end, f"not within {seconds:g} s"
        time.sleep(0.5)


def deployment(name: str, cpu: str) -> dict[str, Any]:
    container = {"name": "web", "image": "web", "resources": {"requests": {"cpu": cpu}}}
    template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": [container]}}
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": name}}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}
