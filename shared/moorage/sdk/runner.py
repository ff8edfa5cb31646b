"""Answers asks with the functions of declared controllers, and keeps them in the registry of the intent store."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any

import msgspec
import structlog

from moorage.bus import Bus, Incoming, NoAnswer, subjects, until_done
from moorage.fleet import Fleet
from moorage.model.candidates import Answer, Answers, Ask, Asks
from moorage.model.controllers import Register
from moorage.model.desired_state import ActionAnswer, ActionAsk
from moorage.model.problems import Problem, Refused

from .answers import answer
from .decorators import Actions, Candidates, Declared, Result
from .preparation import Preparation

log = structlog.get_logger("sdk")
_asks = msgspec.json.Decoder(Ask)
_batches = msgspec.json.Decoder(Asks)
_action_asks = msgspec.json.Decoder(ActionAsk)
#: While so many asks are being answered, more are refused at once rather than queued past their deadline.
MAX_CONCURRENT = 256

#: Returns the answer of a plain function, or a coroutine for that of an async one.
Answering = Callable[[Ask], Answer | Coroutine[Any, Any, Answer]]


class CannotRun(Exception):
    """The reason why controllers cannot be run, for their author. `forbidden`: the names belong to others."""

    def __init__(self, message: str, *, forbidden: bool = False) -> None:
        super().__init__(message)
        self.forbidden = forbidden


class ControllerRunner:
    """Serves the asks to several controllers of one process. `refresh` brings the fleet's free capacity up to date, and returns the
    last commit whose claims it counts, or 0."""

    def __init__(
        self, bus: Bus, fleet: Fleet, controllers: Sequence[Declared], refresh: Callable[[], int] = lambda: 0
    ) -> None:
        self._bus, self._fleet, self._controllers, self._refresh = bus, fleet, controllers, refresh
        self._pending: set[asyncio.Task[Answer]] = set()
        # The answers of one batch are sent before the next batch is begun, so that their askers can go on meanwhile.
        self._batch_lock = asyncio.Lock()
        self._preparations: dict[str, Preparation] = {}  # by controller

    def fleet_changed(self) -> None:
        """Lets controllers prepare for the next ask."""
        for preparation in self._preparations.values():
            preparation.changed()

    async def serve(self) -> None:
        for declared in self._controllers:
            name = declared.name
            if declared.candidates is not None:
                subject, answering = subjects.candidates(name), self._answering(declared, declared.candidates)
                for served, handle in (
                    (subject, partial(self._answer_one, answering)),
                    (subjects.batch(subject), partial(self._answer_batch, answering)),
                ):
                    await self._bus.serve(served, handle, queue=name, limit=MAX_CONCURRENT, max_bytes=4 << 20)
            if declared.actions is not None:
                handle_action = partial(self._answer_action, name, declared.actions)
                subject = subjects.actions(name)
                await self._bus.serve(subject, handle_action, queue=name, limit=MAX_CONCURRENT, max_bytes=8 << 20)

    async def register(self) -> None:
        """Registers every controller, trying until the intent store has answered. After a reconnect it is called again,
        which changes nothing if the registry still has them."""
        for declared in self._controllers:
            message = Register(
                deadline_ms=declared.deadline * 1e3,
                policy=declared.policy,
                weight=declared.weight,
                placement=declared.candidates is not None,
                actions=declared.actions is not None,
                kinds=declared.kinds,
                steady=declared.static,
                together=declared.candidates is not None,
                concerns=list(declared.concerns),
                action_concerns=list(declared.action_concerns),
            )
            try:
                async for attempt in until_done(_is_passing):
                    with attempt:
                        await self._bus.call(subjects.controller(declared.name, "register"), message, msgspec.Raw)
            except Refused as refused:
                raise CannotRun(f"controller {declared.name} was refused: {refused}") from refused

    async def changed(self, name: str) -> None:
        await self._bus.publish(subjects.controller(name, "changed"), b"")

    async def leave(self) -> None:
        """Removes every controller from the registry."""
        for declared in self._controllers:
            with contextlib.suppress(NoAnswer):
                await self._bus.request(subjects.controller(declared.name, "leave"), Register(), timeout=1)

    # --- candidates

    def _answering(self, declared: Declared, function: Candidates) -> Answering:
        """Wraps a controller's function so that errors and missed deadlines become answers."""
        name, preparation = declared.name, None

        def prepare(ask: Ask) -> object:
            self._refresh()
            return function(ask, self._fleet)

        if declared.prepare:
            preparation = self._preparations[name] = Preparation(prepare)

        def complete(ask: Ask, result: Result, sequence: int) -> Answer:
            found = answer(result, ask, self._fleet, name)
            found.cause, found.sequence = ask.id, found.sequence or sequence
            return found

        def failed(ask: Ask, error: Exception) -> Answer:
            log.error("controller failed", controller=name, group=ask.group, cause=ask.id, exc_info=error)
            return Answer(cause=ask.id, error=self._error_text(error))

        async def wait(ask: Ask, result: Awaitable[Result], sequence: int) -> Answer:
            try:
                async with asyncio.timeout(ask.budget_ms / 1e3):  # later the asker has gone on without this answer
                    return complete(ask, await result, sequence)
            except TimeoutError:
                return self._too_late(ask)
            except Exception as error:  # noqa: BLE001 - a controller's function may raise anything
                return failed(ask, error)

        def call(ask: Ask) -> Answer | Coroutine[Any, Any, Answer]:
            if preparation is not None:
                preparation.asked(ask)
            try:
                sequence = self._refresh()
                result = function(ask, self._fleet)
                if isinstance(result, Awaitable):
                    return wait(ask, result, sequence)
                return complete(ask, result, sequence)
            except Exception as error:  # noqa: BLE001 - a controller's function may raise anything
                return failed(ask, error)

        return call

    def _error_text(self, error: Exception) -> str:
        self._bus.count("controller_errors")
        return f"{type(error).__name__}: {error}"[:500]

    def _too_late(self, ask: Ask) -> Answer:
        self._bus.count("late")
        return Answer(cause=ask.id, error="out of time")

    async def _answer_one(self, answering: Answering, incoming: Incoming) -> Answer:
        found = answering(_asks.decode(incoming.data))
        return found if isinstance(found, Answer) else await found

    async def _answer_batch(self, answering: Answering, incoming: Incoming) -> Answers | None:
        """Returns the answers that need no waiting in one message. Each other one is sent by itself when it is known, so
        that no ask waits for another one's answer."""
        asks = _batches.decode(incoming.data).asks
        if len(self._pending) + len(asks) > MAX_CONCURRENT:
            detail = f"{len(self._pending)} asks are being answered"
            raise Refused(Problem(title="Busy", status=503, code="Busy", detail=detail))
        answers: dict[str, Answer] = {}
        tasks: dict[str, asyncio.Task[Answer]] = {}
        now = asyncio.get_running_loop().time
        arrived = now()
        async with self._batch_lock:
            for ask in asks:
                if (now() - arrived) * 1e3 > ask.budget_ms:
                    answers[ask.id] = self._too_late(ask)  # computing it would only delay the others
                    continue
                found = answering(ask)
                if isinstance(found, Answer):
                    answers[ask.id] = found
                else:
                    tasks[ask.id] = self._bus.spawn(found)
            await asyncio.sleep(0)
        for ident, task in tasks.items():
            if task.done():
                answers[ident] = task.result()
            else:
                self._pending.add(task)
                task.add_done_callback(partial(self._send, incoming.reply, ident))
        return Answers(answers=answers) if answers else None

    def _send(self, reply: str, ident: str, task: asyncio.Task[Answer]) -> None:
        self._pending.discard(task)
        if not task.cancelled():
            self._bus.spawn(self._bus.publish(reply, Answers(answers={ident: task.result()})))

    # --- actions

    async def _answer_action(self, name: str, function: Actions, incoming: Incoming) -> ActionAnswer:
        ask = _action_asks.decode(incoming.data)
        try:
            self._refresh()
            contributions = function(ask, self._fleet)
            if isinstance(contributions, Awaitable):
                async with asyncio.timeout(ask.budget_ms / 1e3):
                    contributions = await contributions
        except TimeoutError:
            return ActionAnswer(cause=ask.id, error="out of time")
        except Exception as error:
            log.exception("action failed", controller=name, group=ask.group, cause=ask.id)
            return ActionAnswer(cause=ask.id, error=self._error_text(error))
        for contribution in contributions:
            contribution.by = name
        return ActionAnswer(cause=ask.id, contributions=contributions)


def _is_passing(error: Exception) -> bool:
    """Returns whether the intent store is starting or busy, rather than refusing the controller."""
    return isinstance(error, NoAnswer) or (isinstance(error, Refused) and error.problem.status in (500, 503))
