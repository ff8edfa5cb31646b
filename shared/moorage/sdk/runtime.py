"""Runs controllers: connects, follows the fleet, registers, answers asks, and leaves the registry when stopped cleanly."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from collections.abc import Callable, Container, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from moorage.bus import Bus, Settings
from moorage.fleet import Fleet, FleetFollower
from moorage.ledger import Capacity, LedgerFollower, keep_capacity, open_ledger
from moorage.ledger.metrics import follower_metrics
from moorage.model.claims import Decision

from .decorators import Background, Declared, declared, take_background
from .runner import CannotRun, ControllerRunner

#: Seconds after which what is free is counted for background functions.
REFRESH = 1.0
#: The runner of each controller of this process, by name.
_runners: dict[str, ControllerRunner] = {}


async def changed(name: str) -> None:
    """Announces that the controller `name` of this process would answer differently now: groups that wait because of it
    are asked about again. Changes of the fleet need no announcement."""
    runner = _runners.get(name)
    if runner is None:
        raise ValueError(
            f"no controller {name} runs in this process; there are {', '.join(sorted(_runners)) or 'none'}"
        )
    await runner.changed(name)


async def run(
    settings: Settings,
    controllers: Sequence[Declared] | None = None,
    *,
    worker: str = "controller",
    registered: Callable[[list[str]], None] | None = None,
    begin: Callable[[Fleet, Iterable[Decision]], None] | None = None,
) -> None:
    """Serves these controllers, or all declared ones, until cancelled or until a background function fails; then they leave
    the registry. Controllers of a process that dies stay registered and time out. `worker` is the user of the bus; controllers of another user than
    `controller` are built in and never leave. `registered` is called with their names once the mesh asks them; `begin` before, if they count
    capacity, with the standing decisions, the newest first."""
    controllers = declared() if controllers is None else controllers
    if not controllers:
        raise CannotRun("no controller is declared: decorate a function with @controller(NAME)")
    bus = await Bus.connect(settings, worker=worker)
    fleet = Fleet()
    follower = FleetFollower(settings.redis_url, fleet)
    try:
        bus.set_waiting_for("the fleet in Redis")
        await follower.start()
        bus.set_waiting_for("the decision log")
        log = None
        refresh: Callable[[], int] = lambda: 0
        if any(one.capacity for one in controllers):
            log = await open_ledger(bus)
            refresh = partial(_refresh, log, keep_capacity(log, fleet, lazy=True))
            bus.process_health.add_values(lambda: follower_metrics(follower, log.ledger))
            if begin is not None:
                begin(fleet, log.ledger.newest_first())
        runner = ControllerRunner(bus, fleet, controllers, refresh)
        await runner.serve()
        fleet.on_change.append(lambda _change: runner.fleet_changed())
        if log is not None:
            log.on_fold.append(lambda _commit, _changes: runner.fleet_changed())
        bus.set_waiting_for("the intent store, to register")
        await runner.register()
        bus.on_reconnect(runner.register)
        _runners.update((one.name, runner) for one in controllers)
        functions = take_background()
        for function in functions:
            bus.spawn(_run_background(function))
        if functions:
            bus.spawn(_refresh_for_ever(refresh))

        def health() -> dict[str, Any]:
            missing = [] if follower.healthy else ["the fleet in Redis"]
            return {"ok": not missing, "missing": missing, "epoch": str(fleet.epoch)}

        await bus.announce(health)
        if registered is not None:
            registered([one.name for one in controllers])
        try:
            await bus.closed.wait()
        finally:  # also when a background function failed: nobody answers from now on
            if worker == "controller" and bus.nc.is_connected:
                await runner.leave()
    finally:
        for one in controllers:
            _runners.pop(one.name, None)
        await follower.stop()
        await bus.close()


def _refresh(log: LedgerFollower, capacity: Capacity) -> int:
    """Brings the free capacity up to date. Returns the last commit that it counts."""
    capacity.refresh()
    return log.ledger.seq


async def _refresh_for_ever(refresh: Callable[[], int]) -> None:
    """Background functions read what is free also while nobody asks."""
    while True:
        await asyncio.sleep(REFRESH)
        refresh()


async def _run_background(function: Background) -> None:
    await function()


async def run_file(
    path: str,
    settings: Settings,
    reserved: Container[str] = (),
    registered: Callable[[list[str]], None] | None = None,
) -> None:
    """Imports a Python file and serves the controllers that it declares. Their names may not be `reserved` ones."""
    name = Path(path).stem.replace("-", "_")
    spec = importlib.util.spec_from_file_location(f"moorage_controllers_{name}", path)
    if spec is None or spec.loader is None:
        raise CannotRun(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise CannotRun(f"{error.filename}:{error.lineno}: {error.msg}") from error
    controllers = declared()
    if taken := [one.name for one in controllers if one.name in reserved]:
        detail = f"{', '.join(taken)}: built-in controllers have this name; give yours another one"
        raise CannotRun(f"{path}: {detail}", forbidden=True)
    try:
        await run(settings, controllers, registered=registered)
    except CannotRun as error:
        raise CannotRun(f"{path}: {error}") from None
