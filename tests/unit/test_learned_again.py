"""Tests that algorithms for devices learn from the ledger what they had learned from its decisions, everyone the same."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np

from moorage.controllers.resource_class.core.answers import ClassAnswers
from moorage.device_algorithms import RequestMix
from moorage.device_algorithms.mix import REMEMBERED
from moorage.fit.device_rows import DeviceRows, asked_devices
from moorage.fleet import Fleet, normalize_node
from moorage.ledger import Ledger, decode_commit, encode_commit, encode_entry
from moorage.model.candidates import Ask
from moorage.model.claims import Decision, Withdrawal, decision_document
from moorage.model.part_reports import DeviceReport
from moorage.model.part_requests import ClassVersion, DeviceAsk, PartGroup, PropertyCondition
from moorage.model.reports import NodeReport
from moorage.model.shapes import Shape, ShapedApp
from moorage_testkit.fleets import fleet_of, node, writer_of

MODELS = "ABC"


def gpu_node(name: str, models: str) -> NodeReport:
    devices = [
        DeviceReport(id=f"gpu.d/{name}/g{i}", driver="gpu.d", pool=name, name=f"g{i}", attributes={"model": model})
        for i, model in enumerate(models)
    ]
    return msgspec.structs.replace(node(name, cpu="32", memory="64Gi"), devices=devices)


def clusters() -> dict[str, list[NodeReport]]:
    return {
        "lab/a": [gpu_node("a0", "AAAA"), gpu_node("a1", "AB")],
        "lab/b": [gpu_node("b0", "BBBBBBBB"), gpu_node("b1", "")],
        "lab/c": [gpu_node("c0", "CCCC"), gpu_node("c1", "CCAA")],
    }


def need(rng: random.Random) -> PartGroup:
    models = rng.sample(MODELS, rng.choice((1, 1, 2)))
    asks = []
    for model in models:
        wanted = PropertyCondition(key="model", operator="In", values=(model,))
        share = rng.choice((0, 0, 250, 500))
        asks.append(
            DeviceAsk(
                resource_class=f"class-{model}",
                versions={"": ClassVersion(uid=model, spec="s")},
                properties=rng.choice((((wanted,),), ())),
                count=1 if share else rng.choice((1, 1, 2, 4)),
                share=share,
            )
        )
    return PartGroup(suffix=f"gpu-{rng.random()}", devices=tuple(asks), optional=rng.random() < 0.1)


def random_shape(rng: random.Random, name: str) -> Shape:
    groups = [need(rng) for _ in range(rng.choice((0, 1, 1, 2)))]
    return Shape(
        key=repr(groups),
        object=f"Deployment/{name}",
        count=rng.choice((1, 1, 2, 30)),
        resources={"cpu": rng.choice((500, 4000)), "memory": 1 << 30, "x/y": 1, "pods": 1},
        groups=groups,
    )


def random_apps(rng: random.Random) -> list[ShapedApp]:
    return [ShapedApp(name=app, shapes=[random_shape(rng, str(n)) for n in range(2)]) for app in "ab"]


def decision(number: int, apps: list[ShapedApp]) -> Decision:
    asked = [found for app in apps for shape in app.shapes if (found := asked_devices(app.name, shape)) is not None]
    return Decision(id=f"d{number}", group=f"p/g{number}/v1/d", revision=1, claims=[], asked=asked)


def record_live(rows: DeviceRows, number: int, apps: list[ShapedApp]) -> None:
    for app in apps:
        for shape in app.shapes:
            rows.record(shape, (f"p/g{number}/v1/d", 1, app.name, shape.object))


def folded(decisions: list[Decision]) -> Ledger:
    """Returns the ledger of a log with these decisions, as a reader has it who loads a snapshot from the middle."""
    ledger = Ledger()
    for seq, entry in enumerate(decisions, 1):
        ledger.fold(seq, decode_commit(encode_commit(f"c{seq}", "me", [encode_entry(entry)])))
        if seq == len(decisions) // 2:
            ledger = Ledger.decode(ledger.encode())
    return ledger


def restarted(fleet: Fleet, ledger: Ledger) -> DeviceRows:
    rows = DeviceRows(fleet)
    rows.learn_again(ledger.newest_first())
    return rows


def assert_same(one: RequestMix, other: RequestMix) -> None:
    assert one.version == other.version and one.known == other.known
    assert one.requests == other.requests and (one.weights == other.weights).all()
    assert one.sample == other.sample and (one.sample_weights == other.sample_weights).all()
    assert one.distinct == other.distinct and (one.counts == other.counts).all()


def test_the_mix_is_as_before() -> None:
    for seed in range(8):
        rng, fleet = random.Random(seed), fleet_of(clusters())
        live = restarted(fleet, Ledger())
        made = [random_apps(rng) for _ in range(rng.choice((1, 5, 40)))]
        for number, apps in enumerate(made):
            record_live(live, number, apps)
        ledger = folded([decision(number, apps) for number, apps in enumerate(made)])
        again, third = restarted(fleet, ledger), restarted(fleet_of(clusters()), ledger)
        assert live.mix.known
        assert_same(again.mix, live.mix)
        assert_same(third.mix, live.mix)
        # Whoever hears of these groups again does not count them twice, and goes on alike.
        record_live(again, 0, made[0])
        assert_same(again.mix, live.mix)
        more = random_apps(rng)
        for rows in (live, again, third):
            record_live(rows, len(made), more)
        assert_same(again.mix, live.mix)
        for app in more:
            for shape in app.shapes:
                every = (rows.by_node(shape, "default") for rows in (live, again, third))
                scores = [found for found in every if found is not None]
                assert all(np.array_equal(found, scores[0]) for found in scores)


def test_no_more_is_read_than_is_remembered() -> None:
    rng, fleet = random.Random(3), fleet_of(clusters())
    live = restarted(fleet, Ledger())
    made = [random_apps(rng) for _ in range(400)]
    for number, apps in enumerate(made):
        record_live(live, number, apps)
    ledger = folded([decision(number, apps) for number, apps in enumerate(made)])
    read = 0

    def counted() -> Iterator[Decision]:
        nonlocal read
        for found in ledger.newest_first():
            read += 1
            yield found

    again = DeviceRows(fleet)
    again.learn_again(counted())
    assert 0 < read < len(made)
    assert again.mix._counts == live.mix._counts and again.mix._counts
    assert again.mix.known <= REMEMBERED


def test_what_ended_is_not_learned_again() -> None:
    rng, fleet = random.Random(5), fleet_of(clusters())
    made = [random_apps(rng) for _ in range(6)]
    ledger = folded([decision(number, apps) for number, apps in enumerate(made)])
    ledger.fold(ledger.seq + 1, decode_commit(_withdrawal("p/g5/v1/d")))
    expected = folded([decision(number, apps) for number, apps in enumerate(made[:5])])
    assert_same(restarted(fleet, ledger).mix, restarted(fleet, expected).mix)


def _withdrawal(group: str) -> bytes:
    return encode_commit("w", "me", [encode_entry(Withdrawal(group=group, revision=1))])


def test_kinds_are_looked_up_once_there_are_devices() -> None:
    """The fleet in Redis was lost as well: agents report their clusters after the start."""
    rng, writer = random.Random(7), writer_of({name: [] for name in clusters()})
    made = [random_apps(rng) for _ in range(6)]
    ledger = folded([decision(number, apps) for number, apps in enumerate(made)])
    rows = restarted(writer.fleet, ledger)
    assert not rows.mix.known
    filled = writer_of(clusters())
    live = restarted(filled.fleet, ledger)
    for name, cid in writer.fleet.ids.items():
        writer.put(cid, name, [_row(one) for one in clusters()[name]])
    for one in (rows, live):
        record_live(one, len(made), made[0])
    assert_same(rows.mix, live.mix)


def _row(report: NodeReport) -> Any:
    row, problem = normalize_node(report)
    assert not problem
    return row


def test_the_controller_orders_clusters_as_before() -> None:
    rng = random.Random(11)
    made = [random_apps(rng) for _ in range(30)]
    before, after = ClassAnswers(fleet_of(clusters())), ClassAnswers(fleet_of(clusters()))
    for number, apps in enumerate(made):
        before.answer(_ask(number, apps))
    after.learn_again(folded([decision(number, apps) for number, apps in enumerate(made)]).newest_first())
    ask = _ask(99, random_apps(rng))
    assert msgspec.json.encode(after.answer(ask)) == msgspec.json.encode(before.answer(ask))


def _ask(number: int, apps: list[ShapedApp]) -> Ask:
    return Ask(group=f"p/g{number}/v1/d", revision=1, budget_ms=500, epoch="1.1", tenant="p", apps=apps)


def test_documents_of_decisions_do_not_have_it() -> None:
    made = decision(1, random_apps(random.Random(0)))
    assert made.asked and "asked" not in decision_document(made)
    shape = Shape(key="", object="Deployment/x", resources={"cpu": 1})
    assert asked_devices("a", shape) is None
