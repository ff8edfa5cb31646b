"""Makes a started mesh ready: waits for the workers, fills the simulated fleet, and applies and shows the example."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import shutil
import sys
import time
from collections import Counter
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moorage.cli.documents import Document, read_fleet, read_text
from moorage.cli.terminal import counted, note, out

from ..commands.why import set_text
from ..exit_codes import CONFLICT, DONE, FAILED, Failure
from ..gateway_client import Client, Refusal, group_path
from ..placement_text import why_text

if TYPE_CHECKING:
    from moorage.bus import FoundWorker, Settings

_READY_SECONDS = 90.0
_RUNNING_SECONDS = 60.0
#: Seconds between two looks at what is about to change.
_PAUSE = 0.05


@dataclass
class Bootstrap:
    """Inputs of `bootstrap`. `expected` is the number of workers by kind."""

    url: str
    token: str
    settings: Settings
    expected: dict[str, int]
    fleet: Path | None
    example: bool
    logs: str
    named: Path | None = None  # the state directory, if --state was given


def bootstrap(request: Bootstrap) -> int:
    """Makes the mesh ready and returns an exit code."""
    client = Client(request.url, request.token, timeout=5)
    try:
        asyncio.run(_wait_for_workers(request))
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


async def _wait_for_workers(request: Bootstrap) -> None:
    """Waits until as many workers of each kind as expected are ready."""
    from moorage.bus import Bus, NoAnswer, find_workers  # commands that only need `apply_fleet` start quickly

    end = time.monotonic() + _READY_SECONDS
    bus = await Bus.connect(request.settings, worker="admin")
    try:
        while missing := _missing(request, await find_workers(bus, _PAUSE, lambda found: not _missing(request, found))):
            if time.monotonic() > end:
                text = f"not ready after {_READY_SECONDS:g} s: {', '.join(missing)}"
                raise Failure(f"{text}; see the logs in {request.logs}")
    except NoAnswer:
        raise Failure(f"NATS does not answer; see the logs in {request.logs}") from None
    finally:
        await bus.close()


def _missing(request: Bootstrap, found: list[FoundWorker]) -> list[str]:
    ready = Counter(worker.kind for worker in found if worker.ok)
    return sorted(kind for kind, count in request.expected.items() if ready[kind] < count)


def _print_restored_fleet(client: Client) -> None:
    """Prints that a simulated fleet from before the restart is still there."""
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
    out(f"\ninterfaces: {request.url} (/docs, /v1, /v2, /metrics)\nlogs: {request.logs}\n")
    short = groups[0].split("/")[1] if groups else "NAME"
    command = typed_command(sys.argv[0], Path.cwd())
    state = [f"export MOORAGE_STATE={shlex.quote(str(request.named))}"] if request.named is not None else []
    following = [*state, *(f"{command} {arguments}" for arguments in ("get clusters", f"why {short}", "events -f"))]
    out("\n  ".join(["next, in another terminal:", *following]))


def typed_command(program: str, directory: Path) -> str:
    """Returns how to type this command in a fresh shell in this directory: one that has not activated the environment."""
    path = Path(program).absolute()
    if path.name != "moorage":
        return f"{shlex.quote(sys.executable)} -m moorage.cli"
    if sys.prefix == sys.base_prefix and (found := shutil.which("moorage")) and path.samefile(found):
        return "moorage"
    return shlex.quote(str(path.relative_to(directory) if path.is_relative_to(directory) else path))


def _wait_until_running(client: Client, group: str) -> dict[str, Any]:
    """Waits until the group is Running or Failed, or time is up, and returns its explanation."""
    end = time.monotonic() + _RUNNING_SECONDS
    phase = ""
    while True:
        try:
            why: dict[str, Any] = client.get(group_path(group, "why"))
        except Refusal as refusal:
            if refusal.status != 404 or time.monotonic() > end:  # the gateway's mirror may lag behind the apply
                raise
            time.sleep(_PAUSE)
            continue
        if why["phase"] != phase:
            phase = why["phase"]
            note(f"{group}: {phase}")
        if phase in ("Running", "Failed") or time.monotonic() > end:
            return why
        time.sleep(_PAUSE)
