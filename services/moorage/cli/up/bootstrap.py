"""Makes a started mesh ready: waits for the workers, fills the simulated fleet, and applies and shows the example."""

from __future__ import annotations

import contextlib
import shlex
import time
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from moorage.cli.documents import Document, read_fleet, read_text
from moorage.cli.terminal import counted, note, out

from ..commands.why import set_text, why_text
from ..exit_codes import CONFLICT, DONE, FAILED, Failure
from ..gateway_client import Client, Refusal, group_path

_READY_SECONDS = 30.0
_RUNNING_SECONDS = 30.0


@dataclass
class Bootstrap:
    """Inputs of `bootstrap`. `expected` is the number of workers by kind."""

    url: str
    token: str
    expected: dict[str, int]
    fleet: Path | None
    example: bool
    logs: str
    named: Path | None = None  # the state directory, if --state was given


def bootstrap(request: Bootstrap) -> int:
    """Makes the mesh ready and returns an exit code."""
    client = Client(request.url, request.token, timeout=5)
    try:
        _wait_for_workers(client, request)
        document = _read_fleet(request)
        if document is not None:
            note(f"applying the simulated fleet from {document.where}")
            apply_fleet(client, document)
        else:
            _print_restored_fleet(client)
        if request.example:
            _run_example(client, request)
    except Failure as failure:
        note(f"moorage: {failure}")
        return failure.code if failure.code == CONFLICT else FAILED
    return DONE


def _wait_for_workers(client: Client, request: Bootstrap) -> None:
    end = time.monotonic() + _READY_SECONDS
    missing = sorted(request.expected)
    pause = 0.05
    while missing:
        if time.monotonic() > end:
            raise Failure(f"not ready after {_READY_SECONDS:g} s: {', '.join(missing)}; see the logs in {request.logs}")
        time.sleep(pause)
        pause = min(pause * 1.3, 0.3)
        try:
            workers = client.get("/v1/health")["workers"]
        except Failure:
            continue  # the gateway itself may not be up yet
        counts: dict[str, int] = {}
        for worker in workers:
            if worker["ok"]:
                counts[worker["kind"]] = counts.get(worker["kind"], 0) + 1
        missing = sorted(kind for kind, count in request.expected.items() if counts.get(kind, 0) < count)


def _print_restored_fleet(client: Client) -> None:
    """Says that a simulated fleet applied before a restart is still there."""
    with contextlib.suppress(Refusal):
        if total := client.get("/v1/sim/clusters")["total"]:
            note(f"restored the simulated fleet: {counted(total, 'cluster')}; --fleet FILE replaces it")


def _read_fleet(request: Bootstrap) -> Document | None:
    if request.fleet is not None:
        return read_fleet(str(request.fleet))
    if request.example:
        return read_text(_builtin("fleet.yaml"), "the example", Path(), fleet=True)[0]
    return None


def _builtin(name: str) -> str:
    return (files("moorage.cli") / "example" / name).read_text(encoding="utf-8")


def apply_fleet(client: Client, document: Document, within: float = 120.0) -> dict[str, Any]:
    """Makes the simulated fleet equal to the document, and returns when the inventory has all its clusters."""
    answer = client.call("PUT", "/v1/sim/clusters", body=document.body, timeout=within, where=document.where)
    names = set(answer["clusters"])
    end = time.monotonic() + within
    pause = 0.02
    while True:
        known = {c["id"] for c in client.items("/v1/clusters", limit="1000", view="name") if c["state"] != "Stale"}
        if names <= known:
            return dict(answer)
        if time.monotonic() > end:
            missing = sorted(names - known)
            raise Failure(
                f"timed out after {within:g} s; {counted(len(missing), 'cluster')} not in the inventory: "
                f"{', '.join(missing[:5])}"
            )
        time.sleep(pause)
        pause = min(pause * 1.5, 0.5)


def _run_example(client: Client, request: Bootstrap) -> None:
    """Applies the example, prints its placement, and suggests the next commands."""
    groups: list[str] = []
    for document in read_text(_builtin("application.yaml"), "the example", Path()):
        answer = client.call("POST", "/v1/apply", body=document.body, where=document.where)
        note(f"{document.body['kind']} {answer['name']}: {answer['outcome']}")
        if document.body["kind"] == "Application":
            meta = document.body["metadata"]
            groups.append(f"{meta.get('project', 'default')}/{meta['name']}/v1/default")
    for group in groups:
        out("\n" + why_text(_wait_until_running(client, group)))
        for app, sets in client.get(group_path(group, "candidates"))["merged"].items():
            for candidate_set in sets:
                out(f"  {app} candidates: {set_text(candidate_set)}")
    short = groups[0].split("/")[1] if groups else "NAME"
    state = f"  export MOORAGE_STATE={shlex.quote(str(request.named))}\n" if request.named is not None else ""
    out(
        f"\nNext:\n{state}  moorage get groups; moorage why {short}; moorage diff {short}; moorage events -f\n"
        f"  {request.url}/v1/groups   (Authorization: Bearer, the token is in endpoint.json)\n"
        f"  {request.url}/metrics, {request.url}/readyz\n  logs: {request.logs}\n"
    )


def _wait_until_running(client: Client, group: str) -> dict[str, Any]:
    """Waits until the group is Running or Failed, or time is up, and returns its explanation."""
    end = time.monotonic() + _RUNNING_SECONDS
    pause = 0.02
    phase = ""
    while True:
        try:
            why: dict[str, Any] = client.get(group_path(group, "why"))
        except Refusal as refusal:
            if refusal.status != 404 or time.monotonic() > end:  # the gateway's mirror may lag behind the apply
                raise
            time.sleep(pause)
            continue
        if why["phase"] != phase:
            phase = why["phase"]
            note(f"{group}: {phase}")
        if phase in ("Running", "Failed") or time.monotonic() > end:
            return why
        time.sleep(pause)
        pause = min(pause * 1.5, 0.3)
