"""Runs controllers: connects, follows the fleet, registers, answers, and leaves when it is stopped cleanly."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import sys
from collections.abc import Awaitable, Callable, Container, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import structlog

from moorage.bus import Bus, Incoming, NoAnswer, Settings, subjects
from moorage.fleet import Fleet, FleetFollower
from moorage.ledger import keep_capacity, open_ledger
from moorage.ledger.metrics import followed
from moorage.model.candidates import Answer, Answers, Ask, Asks
from moorage.model.controllers import Register
from moorage.model.desired import ActionAnswer, ActionAsk
from moorage.model.problems import Problem, Refused

from .answers import answer
from .decorators import Alongside, Declared, Said, companions, declared

log = structlog.get_logger("sdk")
_asks = msgspec.json.Decoder(Ask)
_bundles = msgspec.json.Decoder(Asks)
_action_asks = msgspec.json.Decoder(ActionAsk)
#: Work that is asked for while this much is under way is refused at once, not queued past its deadline.
AT_ONCE = 256


#: Plain functions have answered, async ones are about to.
Answering = Callable[[Ask], Answer | Coroutine[Any, Any, Answer]]

_runners: dict[str, ControllerRunner] = {}


async def changed(name: str) -> None:
    """The answers of this process's controller `name` are not what they were: groups that wait because of it are asked
    again. What changes in the fleet need not be said."""
    runner = _runners.get(name)
    if runner is None:
        raise ValueError(
            f"no controller {name} runs in this process; there are {', '.join(sorted(_runners)) or 'none'}"
        )
    await runner.changed(name)


class CannotRun(Exception):
    """Why controllers are not run, in words for who wrote them. `forbidden`: their names are not theirs to take."""

    def __init__(self, message: str, *, forbidden: bool = False) -> None:
        super().__init__(message)
        self.forbidden = forbidden


class ControllerRunner:
    def __init__(self, bus: Bus, fleet: Fleet, controllers: Sequence[Declared]) -> None:
        self._bus, self._fleet, self._controllers = bus, fleet, controllers
        self.registered = False
        self._late: set[asyncio.Task[Answer]] = set()
        # One bundle's answers are on their way before the next one is begun: those who wait for them work meanwhile.
        self._turn = asyncio.Lock()

    async def serve(self) -> None:
        for one in self._controllers:
            if one.candidates is not None:
                subject, said = subjects.candidates(one.name), self._candidates(one)

                async def alone(incoming: Incoming, said: Answering = said) -> Answer:
                    found = said(_asks.decode(incoming.data))
                    return found if isinstance(found, Answer) else await found

                await self._bus.serve(subject, alone, queue=one.name, limit=AT_ONCE, max_bytes=4 << 20)
                many = subjects.batch(subject)
                await self._bus.serve(
                    many, partial(self._together, said), queue=one.name, limit=AT_ONCE, max_bytes=4 << 20
                )
            if one.actions is not None:
                subject = subjects.actions(one.name)
                await self._bus.serve(subject, self._actions(one), queue=one.name, limit=AT_ONCE, max_bytes=8 << 20)

    def _candidates(self, one: Declared) -> Answering:
        assert one.candidates is not None
        function = one.candidates

        def failed(ask: Ask, error: Exception) -> Answer:
            self._bus.count("controller_errors")
            log.error("controller failed", controller=one.name, group=ask.group, cause=ask.id, exc_info=error)
            return Answer(cause=ask.id, error=f"{type(error).__name__}: {error}"[:500])

        def wired(ask: Ask, found: Said) -> Answer:
            whole = answer(found, ask, self._fleet, one.name)
            whole.cause = ask.id
            return whole

        async def later(ask: Ask, found: Awaitable[Said]) -> Answer:
            try:
                async with asyncio.timeout(ask.budget_ms / 1e3):  # past it nobody waits for the answer
                    return wired(ask, await found)
            except TimeoutError:
                return self._out_of_time(ask)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
                return failed(ask, error)

        def said(ask: Ask) -> Answer | Coroutine[Any, Any, Answer]:
            try:
                found = function(ask, self._fleet)
                return later(ask, found) if isinstance(found, Awaitable) else wired(ask, found)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
                return failed(ask, error)

        return said

    def _out_of_time(self, ask: Ask) -> Answer:
        self._bus.count("late")
        return Answer(cause=ask.id, error="out of time")

    async def _together(self, said: Answering, incoming: Incoming) -> Answers | None:
        """What is answered without waiting for anything goes back in one message; the rest comes when it is known, so
        that no question waits for another's."""
        asks = _bundles.decode(incoming.data).asks
        if len(self._late) + len(asks) > AT_ONCE:
            detail = f"{len(self._late)} questions are being answered"
            raise Refused(Problem(title="Busy", status=503, code="Busy", detail=detail))
        answers: dict[str, Answer] = {}
        tasks: dict[str, asyncio.Task[Answer]] = {}
        now = asyncio.get_running_loop().time
        came = now()
        async with self._turn:
            for ask in asks:
                if (now() - came) * 1e3 > ask.budget_ms:
                    answers[ask.id] = self._out_of_time(ask)  # nobody waits for it any more: others do
                    continue
                found = said(ask)
                if isinstance(found, Answer):
                    answers[ask.id] = found
                else:
                    tasks[ask.id] = self._bus.spawn(found)
            await asyncio.sleep(0)
        for ident, task in tasks.items():
            if task.done():
                answers[ident] = task.result()
            else:
                self._late.add(task)
                task.add_done_callback(partial(self._came, incoming.reply, ident))
        return Answers(answers=answers) if answers else None

    def _came(self, reply: str, ident: str, task: asyncio.Task[Answer]) -> None:
        self._late.discard(task)
        if not task.cancelled():
            self._bus.spawn(self._bus.publish(reply, Answers(answers={ident: task.result()})))

    def _actions(self, one: Declared) -> Any:
        assert one.actions is not None
        function = one.actions

        async def handle(incoming: Incoming) -> ActionAnswer:
            ask = _action_asks.decode(incoming.data)
            try:
                contributions = function(ask, self._fleet)
                if isinstance(contributions, Awaitable):
                    async with asyncio.timeout(ask.budget_ms / 1e3):
                        contributions = await contributions
            except TimeoutError:
                return ActionAnswer(cause=ask.id, error="out of time")
            except Exception as error:
                self._bus.count("controller_errors")
                log.exception("action failed", controller=one.name, group=ask.group, cause=ask.id)
                return ActionAnswer(cause=ask.id, error=f"{type(error).__name__}: {error}"[:500])
            for contribution in contributions:
                contribution.by = one.name
            return ActionAnswer(cause=ask.id, contributions=contributions)

        return handle

    async def register(self) -> None:
        """Until the intent store has it; again after a reconnect, which changes nothing where nothing changed."""
        for one in self._controllers:
            message = Register(
                deadline_ms=one.deadline * 1e3,
                policy=one.policy,
                weight=one.weight,
                placement=one.candidates is not None,
                actions=one.actions is not None,
                kinds=one.kinds,
                steady=one.steady,
                together=one.candidates is not None,
            )
            while True:
                with contextlib.suppress(NoAnswer):
                    reply = await self._bus.request(subjects.controller(one.name, "register"), message)
                    if problem := msgspec.json.decode(reply).get("problem"):
                        if problem.get("status") not in (500, 503):
                            raise CannotRun(f"controller {one.name} was refused: {problem.get('detail')}")
                    else:
                        break
                await asyncio.sleep(0.2)
        self.registered = True

    async def changed(self, name: str) -> None:
        await self._bus.publish(subjects.controller(name, "changed"), b"")

    async def leave(self) -> None:
        for one in self._controllers:
            with contextlib.suppress(NoAnswer):
                await self._bus.request(subjects.controller(one.name, "leave"), Register(), timeout=1)


async def run(
    settings: Settings,
    controllers: Sequence[Declared] | None = None,
    *,
    worker: str = "controller",
    asked: Callable[[list[str]], None] | None = None,
) -> None:
    """Serve these controllers until cancelled. Stopped cleanly they leave the registry; dead ones stay and time out.
    `asked` is told their names once they are registered."""
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
        if any(one.capacity for one in controllers):
            log = await open_ledger(bus)
            keep_capacity(log, fleet)
            bus.vitals.show(lambda: followed(follower, log.ledger))
        runner = ControllerRunner(bus, fleet, controllers)
        await runner.serve()
        bus.set_waiting_for("the intent store, to register")
        await runner.register()
        bus.on_reconnect(runner.register)
        _runners.update((one.name, runner) for one in controllers)
        for companion in companions():
            bus.spawn(_accompany(companion))

        def health() -> dict[str, Any]:
            missing = [] if follower.healthy else ["the fleet in Redis"]
            return {"ok": not missing, "missing": missing, "epoch": str(fleet.epoch)}

        await bus.announce(health)
        if asked is not None:
            asked([one.name for one in controllers])
        try:
            await bus.closed.wait()
        except asyncio.CancelledError:
            if worker == "controller":
                await runner.leave()
            raise
    finally:
        for one in controllers:
            _runners.pop(one.name, None)
        await follower.stop()
        await bus.close()


async def _accompany(companion: Alongside) -> None:
    await companion()


async def run_file(
    path: str,
    settings: Settings,
    reserved: Container[str] = (),
    asked: Callable[[list[str]], None] | None = None,
) -> None:
    """Imports a Python file and serves the controllers it declares. Their names may not be `reserved` ones."""
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
        await run(settings, controllers, asked=asked)
    except CannotRun as error:
        raise CannotRun(f"{path}: {error}") from None
