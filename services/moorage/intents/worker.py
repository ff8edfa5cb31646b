"""Serves the intent store: stores documents and /v2 resources, takes groups through their life, keeps the registry of
controllers. Several stores may run; they share the work, and no lock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import msgspec
import structlog

from moorage.bus import Bus, BusError, Incoming, NoAnswer, Settings, subjects
from moorage.mesh import Mesh
from moorage.model.base import Message
from moorage.model.controllers import Controller, Register, Setting
from moorage.model.machines import MACHINE_KINDS
from moorage.model.names import GroupName, is_name, untoken
from moorage.model.problems import (
    ENVELOPE,
    UNREADABLE,
    Problem,
    Refused,
    Violation,
    conflict,
    invalid,
    not_found,
    problem_in,
    unreadable,
    with_defaults,
)
from moorage.model.reasons import Warn
from moorage.model.v2_resources import GROUP, Change, group_name, kind_of
from moorage.parsing import yaml_json
from moorage.parsing.redaction import REDACTED, restore
from moorage.telemetry import MetricValue

from .core import fleet_documents, validate
from .core.validate import Accepted
from .fleet_objects import FleetObjects, is_fleet_kind
from .registry import ControllerRegistry
from .standalone_intents import StandaloneIntents
from .store import Done, GroupStore
from .v2.lifecycle import Lifecycle, StepRequest

log = structlog.get_logger("intents")
QUEUE = "intents"
#: Requests served at a time. At a thousand a second the last of them is still answered within half a second.
CONCURRENCY = 512
#: A resource may come with a file, in base64.
MAX_CHANGE = 3 << 20

#: Fields of a reply that are logged.
_LOGGED = ("name", "group", "revision", "outcome", "state", "path", "seq")

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
    cluster: str = ""  # of a resource class


class _Algorithm(Message, kw_only=True, forbid_unknown_fields=True):
    algorithm: str


class _Act(Message, kw_only=True, forbid_unknown_fields=True):
    group: str
    verb: str
    project: str = "default"
    repeat: bool = False
    target: str = ""
    revision: int = 0
    if_match: int | None = None


#: Seconds that the worker of Machines has for an answer.
MACHINES_TIMEOUT = 8.0
_deletes = msgspec.json.Decoder(_Delete)
_algorithms = msgspec.json.Decoder(_Algorithm)
_acts = msgspec.json.Decoder(_Act)
_changes = msgspec.json.Decoder(Change)


class Worker:
    def __init__(self, bus: Bus, mesh: Mesh) -> None:
        self._bus = bus
        self._builtin_controllers = mesh.builtin_controllers
        self._store = GroupStore(bus)
        self._standalone = StandaloneIntents(bus, self._store)
        self._fleet_objects = FleetObjects(bus)
        self._lifecycle = Lifecycle(bus, self._store)
        self._registry = ControllerRegistry(bus, self._lifecycle.resources.copy.priority)

    async def start(self) -> None:
        await self._registry.start(
            Controller(name=spec.name, policy="required", actions=spec.actions) for spec in self._builtin_controllers
        )
        await self._fleet_objects.start()
        await self._store.start()
        self._bus.spawn(self._standalone.repair())
        await self._lifecycle.start()
        served: tuple[tuple[str, Handler, str], ...] = (
            (subjects.INTENTS_APPLY, self._apply, "document applied"),
            (subjects.INTENTS_CHECK, self._check, ""),
            (subjects.INTENTS_DELETE, self._delete, "document deleted"),
            (subjects.INTENTS_ACT, self._act, "group changed"),
            (subjects.INTENTS_RESOURCE, self._resource, "resource changed"),
            (subjects.REGISTER, self._register, "controller registered"),
            (subjects.LEAVE, self._leave, "controller left"),
            (subjects.CONTROLLERS_SET, self._set, "controller configured"),
            (subjects.DEVICES_ALGORITHM, self._set_algorithm, "algorithm for devices set"),
        )
        for subject, handle, logged in served:
            most = MAX_CHANGE if subject == subjects.INTENTS_RESOURCE else yaml_json.MAX_BYTES
            await self._bus.serve(
                subject,
                self._answered(handle, logged),
                queue=QUEUE,
                limit=CONCURRENCY,
                max_bytes=most,
                refusal=_refusal,
            )

    def metrics(self) -> Iterable[MetricValue]:
        """Gauges that are counted when metrics are collected."""
        states = Counter(head.state for head in self._store.cache.heads())
        yield MetricValue("moorage_groups", "Groups by state", states, "state")
        counts = self._store.cache.counts()
        stored = {"intent": counts["intents"], "resource": len(self._lifecycle.resources.tree)}
        yield MetricValue("moorage_documents", "Stored standalone intents and /v2 resources", stored, "kind")

    def health(self) -> dict[str, Any]:
        return {
            "ok": True,
            "missing": [],
            **self._store.cache.counts(),
            "resources": len(self._lifecycle.resources.tree),
        }

    def _answered(self, handle: Handler, logged: str) -> Callable[[Incoming], Awaitable[bytes]]:
        """Encodes what a handler returns or raises. `logged` is the text of the log line about a change, "" for none."""

        async def answer(incoming: Incoming) -> bytes:
            try:
                reply = await handle(incoming)
                if logged:
                    log.info(logged, **{field: reply[field] for field in _LOGGED if field in reply})
                return _encode({"accepted": True, **reply})
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
            if logged:
                log.info("refused", code=problem.code, detail=problem.detail, errors=len(problem.errors))
            if problem.code in UNREADABLE:
                await self._bus.reject(incoming.subject, incoming.data, problem)
            return _refusal(problem)

        return answer

    async def _set_algorithm(self, incoming: Incoming) -> dict[str, Any]:
        return await self._fleet_objects.set_algorithm(_algorithms.decode(incoming.data).algorithm)

    # Documents

    async def _apply(self, incoming: Incoming) -> dict[str, Any]:
        data = yaml_json.parse_document(incoming.data)
        # Fields beside the document, which the gateway takes from the headers of the request.
        if_match, again = data.pop("ifMatch", None), data.pop("again", False) is True
        cause, data = _split_envelope(data)
        if if_match is not None and type(if_match) is not int:
            raise Refused(invalid([], "ifMatch must be a number: the revision of the group in its bucket"))
        if data.get("kind") in MACHINE_KINDS:
            return await self._machine(subjects.MACHINES_APPLY, {**data, "cause": cause})
        if is_fleet_kind(data.get("kind")):
            return await self._fleet_objects.apply(fleet_documents.accept(data), cause, if_match, again=again)
        data = await self._with_secrets(incoming, data)
        accepted = validate.accept(data, self._registry.kinds)
        if isinstance(accepted, Accepted):
            if self._lifecycle.is_described(str(accepted.group)):
                raise Refused(conflict(f"{accepted.group} is described by /v2 resources; change those instead"))
            done = await self._store.apply(accepted, data, cause, if_match, again=again)
        else:
            done = await self._standalone.apply(accepted, cause, if_match, again=again)
        return _reply(accepted.document.metadata.name, done)

    async def _check(self, incoming: Incoming) -> dict[str, Any]:
        data = yaml_json.parse_document(incoming.data)
        unsaved = data.pop("unsaved", False) is True  # it is to be explained, not to take the place of a stored one
        _, data = _split_envelope(data)
        if data.get("kind") in MACHINE_KINDS:
            return await self._machine(subjects.MACHINES_APPLY, {**data, "check": True})
        if is_fleet_kind(data.get("kind")):
            return await self._fleet_objects.check(fleet_documents.accept(data), unsaved=unsaved)
        data = await self._with_secrets(incoming, data)
        accepted = validate.accept(data, self._registry.kinds)
        if isinstance(accepted, Accepted):
            done = self._store.check(accepted, data)
        else:
            done = self._standalone.check(accepted, await self._store.record(str(accepted.group)))
        reply = _reply(accepted.document.metadata.name, done)
        if done.record is not None:
            reply["record"] = done.record
        return reply

    async def _machine(self, subject: str, body: dict[str, Any]) -> dict[str, Any]:
        """Passes a Machine on to the worker that keeps them: it knows the nodes of all clusters."""
        try:
            reply = await self._bus.request(subject, msgspec.json.encode(body), timeout=MACHINES_TIMEOUT)
        except NoAnswer as error:
            detail = "the worker slots does not answer; run `moorage check` for details"
            raise Refused(Problem(title="Unavailable", status=503, code="Unavailable", detail=detail)) from error
        problem = problem_in(reply)
        if problem is not None:
            raise Refused(problem)
        found: dict[str, Any] = msgspec.json.decode(reply)
        return found

    async def _with_secrets(self, incoming: Incoming, data: dict[str, Any]) -> dict[str, Any]:
        """Returns the document with the values of Secrets that were hidden from the sender, from the stored document."""
        if REDACTED.encode() in incoming.data and isinstance(spec := data.get("spec"), dict):
            meta = data.get("metadata")
            name, project = (meta.get("name"), meta.get("project")) if isinstance(meta, dict) else (None, None)
            record = None
            if is_name(str(name)) and is_name(str(project or "default")):
                record = await self._store.record(f"{project or 'default'}/{name}/v1/default")
            return {**data, "spec": restore(spec, record.document if record is not None else {})}
        return data

    async def _delete(self, incoming: Incoming) -> dict[str, Any]:
        request = _deletes.decode(incoming.data)
        if request.kind == "Machine":
            try:
                body = {"name": request.name, "cause": request.cause}
                return await self._machine(subjects.MACHINES_DELETE, body)
            except Refused as refusal:
                if not request.again or refusal.problem.status != 404:
                    raise
                return {"name": request.name, "group": "", "revision": 0, "outcome": "deleted"}
        if is_fleet_kind(request.kind):
            try:
                return await self._fleet_objects.delete(
                    request.kind, request.name, request.cluster, request.cause, request.if_match
                )
            except Refused as refusal:
                if not request.again or refusal.problem.status != 404:
                    raise
                return {"name": request.name, "group": "", "revision": 0, "outcome": "deleted"}
        if request.kind in (validate.APPLICATION, "Group"):
            done = await self._store.delete_group(_group(request.name, request.project), request.cause)
        else:
            if not (is_name(request.name) and is_name(request.project) and is_name(request.kind)):
                raise Refused(not_found(f"{request.kind} {request.project}/{request.name}"))
            try:
                done = await self._standalone.delete(
                    request.kind, request.project, request.name, request.cause, request.if_match
                )
            except Refused as refusal:
                if not request.again or refusal.problem.status != 404:
                    raise
                done = Done("", 0, "", "deleted")
        return _reply(request.name, done)

    async def _act(self, incoming: Incoming) -> dict[str, Any]:
        request = _acts.decode(incoming.data)
        group = _group(request.group, request.project)
        target = _group(request.target, request.project) if request.target else ""
        step = StepRequest(
            group, request.verb, request.cause, request.repeat, target, request.revision, request.if_match
        )
        return _reply(group.split("/")[1], await self._lifecycle.act(step))

    # Resources

    async def _resource(self, incoming: Incoming) -> dict[str, Any]:
        change = _changes.decode(incoming.data)
        resources = self._lifecycle.resources
        if change.verb == "create":
            done = await resources.create(change)
            if kind_of(tuple(done.path)) is GROUP:
                await self._lifecycle.create_record(group_name(tuple(done.path)), change.id)
        elif change.verb == "replace":
            done = await resources.replace(change)
        elif change.verb in ("delete", "clear"):
            paths = await resources.to_delete(change)
            if paths and kind_of(paths[0]) is GROUP:
                done = await self._lifecycle.delete(paths, change.id, change.if_match)
            else:
                done = await resources.delete(paths, change.if_match)
        else:
            raise Refused(invalid([], f"{change.verb!r} is not one of create, replace, delete and clear"))
        for name in _controllers_of([done.path, *done.removed]):
            if self._registry.is_known(name):
                await self._registry.refresh_priority(name)
            elif not done.removed:
                message = f"no controller {name} is registered, so its priority has no effect yet"
                done.warnings.append(Warn(code="NotRegistered", message=message))
        return {
            "path": done.path,
            "body": done.body,
            "seq": done.seq,
            "removed": done.removed,
            "warnings": done.warnings,
        }

    # Controllers

    async def _register(self, incoming: Incoming) -> dict[str, Any]:
        name = _sender(incoming)
        controller = await self._registry.register(name, _registers.decode(incoming.data or b"{}"))
        return {"name": name, "controller": controller}

    async def _leave(self, incoming: Incoming) -> dict[str, Any]:
        _registers.decode(incoming.data or b"{}")  # no field matters, but an unreadable message is refused
        name = _sender(incoming)
        return {"name": name, "controller": await self._registry.leave(name)}

    async def _set(self, incoming: Incoming) -> dict[str, Any]:
        setting = _settings.decode(incoming.data)
        return {"name": setting.name, "controller": await self._registry.set(setting)}


def _split_envelope(data: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Returns the cause, and the document without the fields that every message may have."""
    envelope = {field: data.get(field, "") for field in ENVELOPE}
    if wrong := [field for field, value in envelope.items() if type(value) is not str]:
        raise Refused(invalid([Violation(path=field, code="WrongType", message="must be text") for field in wrong]))
    cause: str = envelope["cause"]
    return cause, {field: value for field, value in data.items() if field not in envelope}


def _refusal(problem: Problem) -> bytes:
    return _encode({"accepted": False, "problem": with_defaults(problem)})


def _controllers_of(paths: list[list[str]]) -> list[str]:
    return [path[1] for path in paths if len(path) == 2 and path[0] == "controllers"]


def _sender(incoming: Incoming) -> str:
    """Returns the name in the subject, on which only that controller may publish."""
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
    """Runs until it is cancelled or the connection is closed for good."""
    bus = await Bus.connect(settings, worker="intents")
    try:
        worker = Worker(bus, mesh)
        await worker.start()
        bus.process_health.add_values(worker.metrics)
        await bus.announce(worker.health)
        log.info("ready", **worker.health())
        await bus.closed.wait()
    finally:
        await bus.close()
