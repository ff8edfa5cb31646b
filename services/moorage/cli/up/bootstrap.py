"""What happens between the start of the workers and `ready`: wait for all, fill the fleet, apply and show the example."""

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

from ..commands.why import why_text
from ..exit_codes import CONFLICT, DONE, FAILED, Failure
from ..gateway_client import Client, Refusal, group_path

_READY_WITHIN = 30.0
_PLACED_WITHIN = 30.0


@dataclass
class Opening:
    url: str
    token: str
    expected: dict[str, int]
    fleet: Path | None
    example: bool
    logs: str
    named: Path | None = None  # the state directory, where somebody named it


def open_up(opening: Opening) -> int:
    client = Client(opening.url, opening.token, timeout=5)
    try:
        _wait_for_workers(client, opening)
        document = _fleet(opening)
        if document is not None:
            note(f"filling the simulated fleet from {document.where}")
            apply_fleet(client, document)
        else:
            _tell_fleet_of_before(client)
        if opening.example:
            _example(client, opening)
    except Failure as wrong:
        note(f"moorage: {wrong}")
        return wrong.code if wrong.code == CONFLICT else FAILED
    return DONE


def _wait_for_workers(client: Client, opening: Opening) -> None:
    end = time.monotonic() + _READY_WITHIN
    missing = sorted(opening.expected)
    pause = 0.05
    while missing:
        if time.monotonic() > end:
            raise Failure(f"not ready after {_READY_WITHIN:g} s: {', '.join(missing)}; see the logs in {opening.logs}")
        time.sleep(pause)
        pause = min(pause * 1.3, 0.3)
        try:
            workers = client.get("/v1/health")["workers"]
        except Failure:
            continue  # the gateway itself is among those waited for
        counts: dict[str, int] = {}
        for worker in workers:
            if worker["ok"]:
                counts[worker["kind"]] = counts.get(worker["kind"], 0) + 1
        missing = sorted(kind for kind, count in opening.expected.items() if counts.get(kind, 0) < count)


def _tell_fleet_of_before(client: Client) -> None:
    """What was acknowledged is found again, and a fleet that was applied is part of it."""
    with contextlib.suppress(Refusal):
        if total := client.get("/v1/sim/clusters")["total"]:
            note(
                f"the simulated fleet of before is back: {counted(total, 'cluster')}; --fleet FILE puts another in its place"
            )


def _fleet(opening: Opening) -> Document | None:
    if opening.fleet is not None:
        return read_fleet(str(opening.fleet))
    if opening.example:
        return read_text(_builtin("fleet.yaml"), "the example", Path(), fleet=True)[0]
    return None


def _builtin(name: str) -> str:
    return (files("moorage.cli") / "example" / name).read_text(encoding="utf-8")


def apply_fleet(client: Client, document: Document, within: float = 120.0) -> dict[str, Any]:
    """Makes the simulated fleet equal to the document; back when the inventory has all of it."""
    wanted = client.call("PUT", "/v1/sim/clusters", body=document.body, timeout=within, where=document.where)
    names = set(wanted["clusters"])
    end = time.monotonic() + within
    pause = 0.02
    while True:
        known = {c["id"] for c in client.items("/v1/clusters", limit="1000", view="name") if c["state"] != "Stale"}
        if names <= known:
            return dict(wanted)
        if time.monotonic() > end:
            left = sorted(names - known)
            raise Failure(f"{len(left)} clusters are not in the inventory after {within:g} s: {', '.join(left[:5])}")
        time.sleep(pause)
        pause = min(pause * 1.5, 0.5)


def _example(client: Client, opening: Opening) -> None:
    """The usage example: what runs where, why, and where to look next."""
    groups: list[str] = []
    for document in read_text(_builtin("application.yaml"), "the example", Path()):
        answer = client.call("POST", "/v1/apply", body=document.body, where=document.where)
        note(f"{document.body['kind']} {answer['name']}: {answer['outcome']}")
        if document.body["kind"] == "Application":
            meta = document.body["metadata"]
            groups.append(f"{meta.get('project', 'default')}/{meta['name']}/v1/default")
    for group in groups:
        out("\n" + why_text(_settled(client, group)))
        for app, sets in client.get(group_path(group, "candidates"))["merged"].items():
            for one in sets:
                which = "any but" if one["mode"] == "deny" else "one of"
                out(f"  {app} may run on {which} {', '.join(one['clusters']) or 'none'}: what all controllers allow")
    short = groups[0].split("/")[1] if groups else "NAME"
    state = f"  export MOORAGE_STATE={shlex.quote(str(opening.named))}\n" if opening.named is not None else ""
    out(
        f"\nLook at it:\n{state}  moorage get groups; moorage why {short}; moorage diff {short}; moorage events -f\n"
        f"  {opening.url}/v1/groups   (Authorization: Bearer, the token is in endpoint.json)\n"
        f"  {opening.url}/metrics, {opening.url}/readyz\n  logs: {opening.logs}\n"
    )


def _settled(client: Client, group: str) -> dict[str, Any]:
    end = time.monotonic() + _PLACED_WITHIN
    pause = 0.02
    phase = ""
    while True:
        try:
            why: dict[str, Any] = client.get(group_path(group, "why"))
        except Refusal as wrong:
            if wrong.status != 404 or time.monotonic() > end:  # accepted a moment ago: the mirror is on its way
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
