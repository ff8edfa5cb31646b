"""Everything that is read from the bus or a store, on junk: bytes, wrong types, and what has the right types and makes no
sense. It is refused, or read and put up with; nothing else is ever raised, and nobody's state breaks."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import inspect

from moorage.bus import Reply
from moorage.fleet import FleetWriter
from moorage.inventory.core.cluster_ids import ClusterRecord
from moorage.inventory.core.fleet_state import FleetState
from moorage.inventory.worker import ClusterEdit
from moorage.ledger import Ledger, decode_commit
from moorage.ledger.commits import _CommitOfLists
from moorage.merger.core.responses import Replies, collect_reasons, gather
from moorage.model.attempts import Attempt
from moorage.model.base import Message
from moorage.model.candidates import Answer, Answers, Ask, Asks
from moorage.model.claims import Commit
from moorage.model.controllers import Controller, Register, Setting
from moorage.model.desired_state import (
    ActionAnswer,
    ActionAsk,
    DesiredAsk,
    DesiredRecord,
    DesiredReply,
    DiffAsk,
    DiffReply,
)
from moorage.model.events import Event
from moorage.model.groups import Decide, EndedGroups, GroupRecord, Revision, Stored, Withdraw
from moorage.model.machine_views import MachinesAsk, MachinesShown
from moorage.model.machines import MachinesSync, MachinesSynced
from moorage.model.records import History, ReplayAsk
from moorage.model.reports import Report, ReportReply
from moorage.model.shapes import Shape, ShapedApp
from moorage.model.status import AppStatus, ClaimsRemoved, Confirm, GroupStatus
from moorage.model.v2_resources import Change
from moorage.patcher.core.group_status import learn
from moorage_testkit.fleets import fleet_of, node

MESSAGES: tuple[type[msgspec.Struct], ...] = (
    ActionAnswer,
    ActionAsk,
    Answer,
    Answers,
    Ask,
    Asks,
    Attempt,
    Change,
    ClusterEdit,
    ClusterRecord,
    Commit,
    Confirm,
    Controller,
    Decide,
    DesiredAsk,
    DesiredRecord,
    DesiredReply,
    DiffAsk,
    DiffReply,
    Event,
    GroupRecord,
    GroupStatus,
    History,
    MachinesAsk,
    MachinesShown,
    MachinesSync,
    MachinesSynced,
    Register,
    ClaimsRemoved,
    Report,
    ReplayAsk,
    ReportReply,
    Revision,
    Setting,
    Stored,
    Withdraw,
    EndedGroups,
)

TEXTS = st.sampled_from(["", "a", "b", "lab/edge-1", "cpu", "4", "-1", "1e9", "NaN", "9" * 30, "\x00", "é", "x" * 300])
NUMBERS = st.sampled_from([0, 1, -1, 2, 7, 2**31, 2**63 - 1, -(2**63)])
FLOATS = st.sampled_from([0.0, -1.0, 0.5, 1e300, -1e300])
JUNK = st.recursive(
    st.none() | st.booleans() | NUMBERS | FLOATS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
QUICK = settings(max_examples=60, suppress_health_check=list(HealthCheck), deadline=None)


def of(kind: inspect.Type, depth: int = 4) -> st.SearchStrategy[Any]:
    """JSON values that have this type, with as little sense as possible."""
    match kind:
        case inspect.StructType():
            given_ = {f.encode_name: of(f.type, depth - 1) for f in kind.fields if f.required}
            if kind.tag_field:
                given_[kind.tag_field] = st.just(kind.tag)
            optional = {f.encode_name: of(f.type, depth - 1) for f in kind.fields if not f.required}
            return st.fixed_dictionaries(given_, optional=optional if depth > 0 else {})
        case inspect.DictType():
            return st.dictionaries(of(kind.key_type, 0), of(kind.value_type, depth - 1), max_size=2 if depth > 0 else 0)
        case inspect.ListType() | inspect.VarTupleType() | inspect.CollectionType():
            return st.lists(of(kind.item_type, depth - 1), max_size=3 if depth > 0 else 0)
        case inspect.TupleType():
            return st.tuples(*(of(one, depth - 1) for one in kind.item_types)).map(list)
        case inspect.UnionType():
            return st.one_of([of(one, depth) for one in kind.types])
        case inspect.LiteralType():
            return st.sampled_from(kind.values)
        case inspect.NoneType():
            return st.none()
        case inspect.BoolType():
            return st.booleans()
        case inspect.IntType():
            return NUMBERS
        case inspect.FloatType():
            return FLOATS | NUMBERS
        case inspect.StrType():
            return TEXTS
        case inspect.AnyType() | inspect.RawType():
            return JUNK
        case inspect.BytesType():
            return st.sampled_from(["", "AAAA", "////"])
    raise AssertionError(f"there is no junk yet for {kind}")


def shaped(model: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    return of(inspect.type_info(model))


def wherever(value: Any, junk: Any, at: int) -> Any:
    """The value with one of its parts replaced."""
    places: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        for key in node if isinstance(node, dict) else range(len(node)):
            places.append((node, key))
            if isinstance(node[key], dict | list):
                walk(node[key])

    if isinstance(value, dict | list):
        walk(value)
    if not places:
        return junk
    node, key = places[at % len(places)]
    node[key] = junk
    return value


def decoded(model: type[Any], data: bytes) -> Any:
    try:
        return msgspec.json.decode(data, type=model)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


@pytest.mark.parametrize("model", MESSAGES, ids=lambda model: model.__name__)
@given(data=st.data())
@QUICK
def test_what_cannot_be_read_is_refused(model: type[msgspec.Struct], data: st.DataObject) -> None:
    decoded(model, data.draw(st.binary(max_size=60)))
    value = data.draw(shaped(model))
    text = msgspec.json.encode(value)
    decoded(model, text[: data.draw(st.integers(0, len(text)))])
    wrong = wherever(value, data.draw(JUNK), data.draw(st.integers(0, 1000)))
    found = decoded(model, msgspec.json.encode(wrong))
    if found is not None:
        # What was taken can be said again and means the same.
        assert decoded(model, msgspec.json.encode(found)) == found


@pytest.mark.parametrize("depth", [50, 10_000, 300_000])
@pytest.mark.parametrize("model", MESSAGES, ids=lambda model: model.__name__)
def test_what_is_nested_too_deeply_is_refused(model: type[msgspec.Struct], depth: int) -> None:
    for opening, closing in ((b"[", b"]"), (b'{"data":', b"}"), (b'{"intents":[{"spec":', b"}]}")):
        decoded(model, opening * depth + b"1" + closing * depth)


@given(st.lists(shaped(Report), min_size=1, max_size=4))
@QUICK
def test_reports_that_make_no_sense(reports: list[Any]) -> None:
    """An agent says what it likes; the rows of others stay as they are."""
    core = FleetState(FleetWriter(), 1)
    list(core.begin({}, 0.0))
    good = Report(session="s", seq=0, kind="full", nodes=[], labels={"a": "b"})
    for cluster in ("lab/good", "lab/odd"):
        core.register(cluster, core.new_record(cluster, {}), 0.0)
    core.report("lab/good", "agent", good, 0.0)
    for number, value in enumerate(reports):
        report = decoded(Report, msgspec.json.encode(value))
        if report is not None:
            core.report("lab/odd", "agent", report, 1.0 + number)
            core.tick(1.0 + number)
    core.writer.flush(1, 1)
    fleet = core.writer.fleet
    assert dict(fleet.cluster_labels(fleet.ids["lab/good"]))["a"] == "b"
    assert not core.report("lab/good", "agent", Report(session="s", seq=1), 9.0).reply.resync


@given(st.lists(shaped(Commit) | shaped(_CommitOfLists), min_size=1, max_size=4))
@QUICK
def test_commits_that_make_no_sense_fold_the_same_everywhere(commits: list[Any]) -> None:
    one, other = Ledger(), Ledger()
    for seq, value in enumerate(commits, 1):
        text = msgspec.json.encode(value)
        try:
            commit = decode_commit(text)
        except msgspec.DecodeError:
            commit = Commit()
        one.fold(seq, commit)
        other.fold(seq, msgspec.json.decode(msgspec.json.encode(commit), type=Commit))
    assert (
        one.standing == other.standing and one.claims == other.claims and one.ended_revisions == other.ended_revisions
    )
    assert one.by_cluster == other.by_cluster and one.by_group == other.by_group
    restored = Ledger.decode(one.encode())
    assert restored.seq == one.seq == len(commits) and restored.standing == one.standing


@given(shaped(Answer) | JUNK, st.sampled_from(["required", "optional", "stale-ok"]))
@QUICK
def test_answers_that_make_no_sense(value: Any, policy: Any) -> None:
    fleet = fleet_of({"lab/edge-1": [node(cpu="4")], "lab/edge-2": [node(cpu="4")]})
    for data in (msgspec.json.encode(value), msgspec.json.encode(value)[:-1]):
        replies = {"odd": Reply("answered", data, 1.0)}
        got = gather(Replies(["a", "b"], [Controller(name="odd", policy=policy)], replies, {"odd": data}), fleet)
        (asked,) = got.asked
        assert asked.outcome in ("answered", "error")
        assert bool(got.missing) == (policy == "required" and asked.outcome == "error")
        msgspec.json.encode(collect_reasons(got, fleet))


@given(shaped(Confirm), shaped(AppStatus) | st.none())
@QUICK
def test_confirmations_that_make_no_sense(value: Any, known: Any) -> None:
    confirm = decoded(Confirm, msgspec.json.encode(value))
    before = None if known is None else decoded(AppStatus, msgspec.json.encode(known))
    if confirm is not None:
        after = learn(confirm, "lab/edge-1", before)
        assert after is None or before is None or after.version >= before.version


def test_every_message_of_the_models_is_here() -> None:
    there, new = set[type[Message]](), Message.__subclasses__()
    while new:
        there.add(kind := new.pop())
        new += kind.__subclasses__()
    assert {kind for kind in there if kind.__module__.startswith("moorage.model")} <= set(MESSAGES)


def test_who_knows_no_defaults_finds_what_it_is_asked_about() -> None:
    ask = Ask(group="g", revision=1, budget_ms=1, epoch="0", tenant="p", apps=[ShapedApp(name="a")])
    assert msgspec.to_builtins(ask)["apps"] == [{"name": "a", "replicas": 1, "shapes": []}]
    assert msgspec.to_builtins(Shape(key="k", object="Deployment/web"))["count"] == 1
    assert msgspec.json.decode(b'{"name": "a"}', type=ShapedApp) == ShapedApp(name="a")
