"""The intent store as a worker: takes documents and what operators do to groups, keeps the registry of controllers.
Several may run; they share the work and never a lock."""

from __future__ import annotations

import contextlib
from collections import Counter as Tally
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import msgspec
import structlog

from moorage.bus import Bus, BusError, Conflict, Entry, Incoming, NoAnswer, Settings, subjects
from moorage.mesh import Mesh, stores
from moorage.model.base import Message
from moorage.model.controllers import Controller, Register, Setting
from moorage.model.names import GroupName, is_name, token, untoken
from moorage.model.problems import (
    ENVELOPE,
    UNREADABLE,
    Problem,
    Refused,
    Violation,
    conflict,
    invalid,
    not_found,
    unreadable,
    whole,
)
from moorage.model.reasons import Warn
from moorage.model.v2_resources import GROUP, Change, group_name, kind_of
from moorage.parsing import yaml_json
from moorage.parsing.redaction import REDACTED, restore
from moorage.telemetry import MetricValue

from .core import controller_registry, validate
from .core.validate import Accepted
from .standalone_intents import StandaloneIntents
from .store import Done, GroupStore
from .v2.lifecycle import Lifecycle, Order

log = structlog.get_logger("intents")
QUEUE = "intents"
#: At a thousand a second the last of so many still gets its answer within half a second.
AT_ONCE = 512
#: A resource may come with a file, in base64.
MAX_CHANGE = 3 << 20

_controllers = msgspec.json.Decoder(Controller)
_settings = msgspec.json.Decoder(Setting)
_registers = msgspec.json.Decoder(Register)
_encode = msgspec.json.Encoder().encode

Handler = Callable[[Incoming], Awaitable[dict[str, Any]]]


class _Delete(Message, kw_only=True, forbid_unknown_fields=True):
    kind: str
    name: str
    project: str = "default"
    if_match: int | None = None
    again: bool = False


class _Act(Message, kw_only=True, forbid_unknown_fields=True):
    group: str
    verb: str
    project: str = "default"
    repeat: bool = False
    target: str = ""
    revision: int = 0
    if_match: int | None = None


_deletes = msgspec.json.Decoder(_Delete)
_acts = msgspec.json.Decoder(_Act)
_changes = msgspec.json.Decoder(Change)


class Worker:
    def __init__(self, bus: Bus, mesh: Mesh) -> None:
        self._bus = bus
        self._builtin_controllers = mesh.builtin_controllers
        self._store = GroupStore(bus)
        self._attaching = StandaloneIntents(bus, self._store)
        self._life = Lifecycle(bus, self._store)
        self._registry = bus.bucket(stores.CONTROLLERS)
        self._known: dict[str, tuple[Controller, int]] = {}
        self._kinds: dict[str, list[dict[str, Any]]] = {}

    async def start(self) -> None:
        await self._registry.mirror(self._saw_controller)
        await self._enter_builtins()
        await self._store.start()
        self._bus.spawn(self._attaching.mend())
        await self._life.start()
        served: tuple[tuple[str, Handler], ...] = (
            (subjects.INTENTS_APPLY, self._apply),
            (subjects.INTENTS_CHECK, self._check),
            (subjects.INTENTS_DELETE, self._delete),
            (subjects.INTENTS_ACT, self._act),
            (subjects.INTENTS_RESOURCE, self._resource),
            (subjects.REGISTER, self._register),
            (subjects.LEAVE, self._leave),
            (subjects.CONTROLLERS_SET, self._set),
        )
        for subject, handle in served:
            most = MAX_CHANGE if subject == subjects.INTENTS_RESOURCE else yaml_json.MAX_BYTES
            await self._bus.serve(
                subject, self._answered(handle), queue=QUEUE, limit=AT_ONCE, max_bytes=most, refusal=_refusal
            )

    def figures(self) -> Iterable[MetricValue]:
        """What is counted when somebody collects it."""
        states = Tally(head.state for head in self._store.copies.heads())
        yield MetricValue("moorage_groups", "Groups by the state they were brought to", states, "state")
        counts = self._store.copies.counts()
        stored = {"intent": counts["intents"], "resource": len(self._life.resources.tree)}
        yield MetricValue(
            "moorage_documents", "Documents beside the groups: intents of their own, /v2 resources", stored, "kind"
        )

    def health(self) -> dict[str, Any]:
        return {"ok": True, "missing": [], **self._store.copies.counts(), "resources": len(self._life.resources.tree)}

    def _answered(self, handle: Handler) -> Callable[[Incoming], Awaitable[bytes]]:
        async def answer(incoming: Incoming) -> bytes:
            try:
                return _encode({"accepted": True, **await handle(incoming)})
            except Refused as refusal:
                problem = refusal.problem
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                problem = unreadable(error)
            except RecursionError:
                problem = Problem(title="Not readable", status=400, code="TooDeep", detail="nested too deeply")
            except (NoAnswer, BusError) as error:
                self._bus.count("store_errors")
                detail = (
                    f"the store did not answer; whether this was stored is not known, and repeating it is safe: {error}"
                )
                problem = Problem(title="Store unavailable", status=503, code="StoreUnavailable", detail=detail[:500])
            if problem.code in UNREADABLE:
                await self._bus.reject(incoming.subject, incoming.data, problem)
            return _refusal(problem)

        return answer

    # Documents

    async def _apply(self, incoming: Incoming) -> dict[str, Any]:
        data = yaml_json.parse_document(incoming.data)
        # Beside the document: the gateway's header, and the id of the request.
        if_match, again = data.pop("ifMatch", None), data.pop("again", False) is True
        cause = _envelope(data)
        if if_match is not None and type(if_match) is not int:
            raise Refused(invalid([], "ifMatch is a number of the bucket"))
        given = validate.accept(await self._whole(incoming, data), self._kinds)
        if isinstance(given, Accepted):
            if self._life.described(str(given.group)):
                raise Refused(conflict(f"{given.group} is made of /v2 resources; change those"))
            done = await self._store.apply(given, data, cause, if_match, again=again)
        else:
            done = await self._attaching.apply(given, cause, if_match, again=again)
        return _reply(given.document.metadata.name, done)

    async def _check(self, incoming: Incoming) -> dict[str, Any]:
        data = yaml_json.parse_document(incoming.data)
        _envelope(data)
        given = validate.accept(await self._whole(incoming, data), self._kinds)
        if isinstance(given, Accepted):
            done = self._store.check(given, data)
        else:
            done = self._attaching.check(given, await self._store.record(str(given.group)))
        reply = _reply(given.document.metadata.name, done)
        if done.record is not None:
            reply["record"] = done.record
        return reply

    async def _whole(self, incoming: Incoming, data: dict[str, Any]) -> dict[str, Any]:
        """With the values of Secrets that the sender was not shown, as they are stored."""
        if REDACTED.encode() in incoming.data and isinstance(spec := data.get("spec"), dict):
            meta = data.get("metadata")
            name, project = (meta.get("name"), meta.get("project")) if isinstance(meta, dict) else (None, None)
            record = None
            if is_name(str(name)) and is_name(str(project or "default")):
                record = await self._store.record(f"{project or 'default'}/{name}/v1/default")
            data["spec"] = restore(spec, record.document if record is not None else {})
        return data

    async def _delete(self, incoming: Incoming) -> dict[str, Any]:
        said = _deletes.decode(incoming.data)
        if said.kind in (validate.APPLICATION, "Group"):
            done = await self._store.delete_group(_group(said.name, said.project), said.cause)
        else:
            if not (is_name(said.name) and is_name(said.project) and is_name(said.kind)):
                raise Refused(not_found(f"{said.kind} {said.project}/{said.name}"))
            try:
                done = await self._attaching.delete(said.kind, said.project, said.name, said.cause, said.if_match)
            except Refused as refusal:
                if not said.again or refusal.problem.status != 404:
                    raise
                done = Done("", 0, "", "deleted")
        return _reply(said.name, done)

    async def _act(self, incoming: Incoming) -> dict[str, Any]:
        said = _acts.decode(incoming.data)
        group = _group(said.group, said.project)
        target = _group(said.target, said.project) if said.target else ""
        order = Order(group, said.verb, said.cause, said.repeat, target, said.revision, said.if_match)
        return _reply(group.split("/")[1], await self._life.act(order))

    # Resources

    async def _resource(self, incoming: Incoming) -> dict[str, Any]:
        change = _changes.decode(incoming.data)
        resources = self._life.resources
        if change.verb == "create":
            done = await resources.create(change)
            if kind_of(tuple(done.path)) is GROUP:
                await self._life.open(group_name(tuple(done.path)), change.id)
        elif change.verb == "replace":
            done = await resources.replace(change)
        elif change.verb in ("delete", "clear"):
            chosen = await resources.chosen(change)
            if chosen and kind_of(chosen[0]) is GROUP:
                done = await self._life.delete(chosen, change.id, change.if_match)
            else:
                done = await resources.remove(chosen, change.if_match)
        else:
            raise Refused(invalid([], f"{change.verb!r} is none of create, replace, delete and clear"))
        for name in _controllers_of([done.path, *done.removed]):
            if token(name) in self._known:
                await self._enter(name, lambda old: old)
            elif not done.removed:
                message = f"no controller {name} is registered here, so its priority breaks no tie; it is kept"
                done.warnings.append(Warn(code="NotRegistered", message=message))
        return {
            "path": done.path,
            "body": done.body,
            "seq": done.seq,
            "removed": done.removed,
            "warnings": done.warnings,
        }

    # The registry

    async def _register(self, incoming: Incoming) -> dict[str, Any]:
        name = _sender(incoming)
        said = _registers.decode(incoming.data or b"{}")
        others = [controller for controller, _ in self._known.values()]
        return await self._enter(name, lambda old: controller_registry.registered(old, name, said, others))

    async def _leave(self, incoming: Incoming) -> dict[str, Any]:
        _registers.decode(incoming.data or b"{}")  # nothing in it matters, but junk is not a farewell
        return await self._enter(
            _sender(incoming), lambda old: controller_registry.left(old) if old is not None else None
        )

    async def _set(self, incoming: Incoming) -> dict[str, Any]:
        said = _settings.decode(incoming.data)
        return await self._enter(said.name, lambda old: None if said.remove else controller_registry.was_set(old, said))

    async def _enter(self, name: str, change: Callable[[Controller | None], Controller | None]) -> dict[str, Any]:
        key = token(name)

        async def changed(entry: Entry | None) -> bytes | None:
            old = _controllers.decode(entry.value) if entry is not None else None
            new = change(old)
            if new is None:
                return None
            new = msgspec.structs.replace(new, priority=self._life.resources.priority(name))
            return entry.value if entry is not None and new == old else _encode(new)

        try:
            _, after = await self._registry.modify(key, changed)
        except Conflict:
            raise Refused(conflict(f"controller {name} keeps changing; try again")) from None
        if after is None:
            self._saw_controller(key, None, 0)
            return {"name": name, "controller": None}
        self._saw_controller(key, after.value, after.revision)
        return {"name": name, "controller": _controllers.decode(after.value)}

    async def _enter_builtins(self) -> None:
        """On an empty registry, before the first document is taken: else one that comes before a controller has
        registered would be decided without it, as if nobody had asked for labels."""
        if self._known:
            return
        for spec in self._builtin_controllers:
            key, value = token(spec.name), _encode(Controller(name=spec.name, policy="required", actions=spec.actions))
            with contextlib.suppress(Conflict):  # another store, or the controller itself
                self._saw_controller(key, value, await self._registry.create(key, value))

    def _saw_controller(self, key: str, value: bytes | None, at: int) -> None:
        if value is None:
            self._known.pop(key, None)
        else:
            known = self._known.get(key)
            if known is not None and known[1] >= at:
                return
            self._known[key] = (_controllers.decode(value), at)
        kinds: dict[str, list[dict[str, Any]]] = {}
        for controller, _ in self._known.values():
            for kind, schema in controller.kinds.items():
                kinds.setdefault(kind, []).append(schema)
        self._kinds = kinds


def _envelope(data: dict[str, Any]) -> str:
    """What any message may have is no part of the document; the cause is."""
    said = {field: data.pop(field, "") for field in ENVELOPE}
    if wrong := [field for field, value in said.items() if type(value) is not str]:
        raise Refused(invalid([Violation(path=field, code="WrongType", message="must be text") for field in wrong]))
    cause: str = said["cause"]
    return cause


def _refusal(problem: Problem) -> bytes:
    return _encode({"accepted": False, "problem": whole(problem)})


def _controllers_of(paths: list[list[str]]) -> list[str]:
    return [path[1] for path in paths if len(path) == 2 and path[0] == "controllers"]


def _sender(incoming: Incoming) -> str:
    """The name is the subject's, on which only its owner may publish."""
    return untoken(incoming.subject.split(".")[2])


def _group(text: str, project: str) -> str:
    try:
        return str(GroupName.parse(text, project))
    except ValueError as error:
        raise Refused(invalid([], str(error))) from None


def _reply(name: str, done: Done) -> dict[str, Any]:
    reply: dict[str, Any] = {"name": name, "group": done.group, "revision": done.revision, "outcome": done.outcome}
    if done.state:
        reply["state"] = done.state
    if done.warnings:
        reply["warnings"] = list(done.warnings)
    return reply


async def main(settings: Settings, *, mesh: Mesh) -> None:
    """Runs until it is cancelled or the broker is gone for good."""
    bus = await Bus.connect(settings, worker="intents")
    try:
        worker = Worker(bus, mesh)
        await worker.start()
        bus.vitals.show(worker.figures)
        await bus.announce(worker.health)
        log.info("ready", **worker.health())
        await bus.closed.wait()
    finally:
        await bus.close()
