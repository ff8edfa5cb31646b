"""Tests the checker that runs after every test of a mesh: it finds each kind of defect, and nothing where all is well."""

from __future__ import annotations

import msgspec
import pytest

from moorage.bus import Bus
from moorage.ledger import LOG, Ledger, write_snapshot
from moorage.model.claims import Claim, Commit, Decision, IntentRef, Reassignment, Release, Slot, Withdrawal
from moorage.model.slots import DeviceGrant, resource_of_part
from moorage_testkit.fleets import fleet_of, node
from moorage_testkit.invariants import counting_pods, read_log, room_in, room_now, violations

ROOM = {"lab/one": {"n-0": {"cpu": 2000, "pods": 110}, "n-1": {"cpu": 2000, "pods": 110}}}


def on(at: str, cpu: int = 2000, count: int = 1) -> list[Slot]:
    return [Slot(node=at, count=count, resources={"cpu": cpu, "pods": 1})]


def decided(group: str, slots: list[Slot], *, revision: int = 1, claim: str = "") -> Decision:
    ident = f"{group}-{revision}"
    claims = [
        Claim(
            id=claim or f"claim-{group}",
            decision=ident,
            intent=IntentRef(kind="Application", name=group, revision=revision),
            tenant="p",
            slots=slots,
            cluster="lab/one",
            app="a",
            object="o",
        )
    ]
    return Decision(id=ident, group=group, revision=revision, claims=claims)


def numbered(*commits: Commit) -> list[tuple[int, Commit]]:
    return [(seq, msgspec.structs.replace(one, id=one.id or f"c{seq}")) for seq, one in enumerate(commits, 1)]


LEGAL = {
    "two that fit": [Commit(entries=[decided("g", on("n-0", 1000)), decided("h", on("n-0", 1000))])],
    "taken after the release": [
        Commit(entries=[decided("g", on("n-0"))]),
        Commit(entries=[Withdrawal(group="g", revision=1)]),
        Commit(entries=[Release(claims=["claim-g"])]),
        Commit(entries=[decided("h", on("n-0"))]),
    ],
    "released and taken in one": [
        Commit(entries=[decided("g", on("n-0"))]),
        Commit(entries=[Withdrawal(group="g", revision=1), Release(claims=["claim-g"])]),
        Commit(entries=[decided("h", on("n-0"))]),
    ],
    "moved to where there is room": [
        Commit(entries=[decided("g", on("n-0"))]),
        Commit(entries=[Reassignment(claim="claim-g", slots=on("n-1"))]),
        Commit(entries=[decided("h", on("n-0"))]),
    ],
    "the same claim again": [
        Commit(entries=[decided("g", on("n-0"))]),
        Commit(entries=[decided("g", on("n-0"), revision=2)]),
    ],
    "another claim in the place of the one before": [
        Commit(entries=[decided("g", on("n-0"))]),
        Commit(entries=[decided("g", on("n-0"), revision=2, claim="another")]),
    ],
    "withdrawn before it was decided": [
        Commit(entries=[decided("h", on("n-0"))]),
        Commit(entries=[Withdrawal(group="g", revision=1)]),
        Commit(entries=[decided("g", on("n-0"))]),
    ],
}
WRONG = {
    "one claims too much": (
        [Commit(entries=[decided("g", on("n-0", 2001))])],
        "1: lab/one n-0 has 2000 cpu, claimed are 2001",
    ),
    "its pods together do": (
        [Commit(entries=[decided("g", on("n-0", 700, 3))])],
        "1: lab/one n-0 has 2000 cpu, claimed are 2100",
    ),
    "two share a place": (
        [Commit(entries=[decided("g", on("n-0", 1500))]), Commit(entries=[decided("h", on("n-0", 1000))])],
        "2: lab/one n-0 has 2000 cpu, claimed are 2500",
    ),
    "a node that is not there": (
        [Commit(entries=[decided("g", on("n-9", 1))])],
        "1: lab/one n-9 has 0 cpu, claimed are 1",
    ),
    "withdrawn ones still count": (
        [
            Commit(entries=[decided("g", on("n-0"))]),
            Commit(entries=[Withdrawal(group="g", revision=1)]),
            Commit(entries=[decided("h", on("n-0"))]),
        ],
        "3: lab/one n-0 has 2000 cpu, claimed are 4000",
    ),
    "those of the decision before, too": (
        [
            Commit(entries=[decided("g", on("n-0"))]),
            Commit(entries=[decided("g", on("n-0", 500), revision=2, claim="another")]),
            Commit(entries=[decided("h", on("n-0", 1000))]),
        ],
        "3: lab/one n-0 has 2000 cpu, claimed are 3000",
    ),
    "moved to a place that is taken": (
        [
            Commit(entries=[decided("g", on("n-0")), decided("h", on("n-1"))]),
            Commit(entries=[Reassignment(claim="claim-g", slots=on("n-1"))]),
        ],
        "2: lab/one n-1 has 2000 cpu, claimed are 4000",
    ),
    "withdrawn, and moved to a place that is taken": (
        [
            Commit(entries=[decided("g", on("n-0")), decided("h", on("n-1"))]),
            Commit(entries=[Withdrawal(group="g", revision=1)]),
            Commit(entries=[Reassignment(claim="claim-g", slots=on("n-1"))]),
        ],
        "3: lab/one n-1 has 2000 cpu, claimed are 4000",
    ),
    "a commit that is there twice": (
        [Commit(id="same", entries=[Withdrawal(group="g", revision=1)]), Commit(id="same")],
        "2: commit same is in the log twice",
    ),
    "a group that is decided twice at once": (
        [Commit(entries=[decided("g", on("n-0", 1)), decided("g", on("n-0", 1), revision=2)])],
        "1: a group is decided twice in one commit",
    ),
}


@pytest.mark.parametrize(("need", "is_legal"), [("gpu/one", True), ("gpu", False)])
def test_devices_of_a_claim_that_pods_have_together_pass_from_object_to_object(need: str, is_legal: bool) -> None:
    grant = DeviceGrant(part="g0", need=need, name="GPU", amount=1)
    first = decided("g", [Slot(node="n-0", parts={"g0": {"GPU": 1}}, devices=[grant])])
    (claim,) = first.claims
    other = msgspec.structs.replace(claim, id="other", decision="g-2", object="another")
    commits = numbered(
        Commit(entries=[first]),
        Commit(entries=[msgspec.structs.replace(first, id="g-2", revision=2, claims=[other])]),
    )
    room = {"lab/one": {"n-0": {resource_of_part("g0", "GPU"): 1}}}
    found = violations(commits, room)
    assert found == [] if is_legal else "claimed are 2" in found[0]


@pytest.mark.parametrize("what", LEGAL)
def test_a_log_as_it_should_be(what: str) -> None:
    assert violations(numbered(*LEGAL[what]), ROOM) == []


@pytest.mark.parametrize("what", WRONG)
def test_each_way_in_which_a_log_may_be_wrong(what: str) -> None:
    commits, said = WRONG[what]
    found = violations(numbered(*commits), ROOM)
    assert [one for one in found if "pods" not in one] == [said]


def test_a_snapshot_counts_as_the_log_before_it() -> None:
    ledger = Ledger()
    ledger.fold(1, Commit(id="first", entries=[decided("g", on("n-0"))]))
    assert violations([], ROOM, ledger) == []
    assert violations([], {"lab/one": {"n-0": {"cpu": 1000, "pods": 1}}}, ledger) == [
        "up to 1: lab/one n-0 has 1000 cpu, claimed are 2000"
    ]
    ledger.fold(2, Commit(id="second", entries=[Withdrawal(group="g", revision=1)]))
    after = [(3, Commit(id="first", entries=[decided("h", on("n-0"))]))]
    assert violations(after, ROOM, ledger) == [
        "3: commit first is in the log twice",
        "3: lab/one n-0 has 2000 cpu, claimed are 4000",
    ]


def test_room_that_nobody_knows_of_has_as_much_as_is_said() -> None:
    commits = numbered(Commit(entries=[decided("g", on("n-9", 5000))]))
    assert violations(commits, ROOM, unknown=5000) == []
    assert violations(commits, ROOM, unknown=4999) == ["1: lab/one n-9 has 4999 cpu, claimed are 5000"]


def test_pods_that_count_are_those_of_standing_decisions() -> None:
    ledger = Ledger()
    ledger.fold(1, Commit(id="1", entries=[decided("g", on("n-0", 1, 3)), decided("h", on("n-1", 1, 2))]))
    ledger.fold(2, Commit(id="2", entries=[Withdrawal(group="h", revision=1)]))
    assert counting_pods(ledger) == 3


def test_room_is_what_each_node_can_take() -> None:
    fleet = fleet_of({"lab/one": [node(cpu="2"), node(cpu="4")], "lab/two": [node(cpu="8", pods="5")]})
    found = room_in(fleet)
    assert {cluster: {n: (r["cpu"], r["pods"]) for n, r in nodes.items()} for cluster, nodes in found.items()} == {
        "lab/one": {"n-0": (2000, 110), "n-1": (4000, 110)},
        "lab/two": {"n-0": (8000, 5)},
    }


async def test_room_that_cannot_be_read_is_an_error() -> None:
    with pytest.raises(AssertionError, match="nothing can be checked"):
        await room_now("redis://127.0.0.1:1/0", seconds=0.2)


async def test_the_log_is_read_from_the_snapshot_on_with_what_folds_to_nothing(bus: Bus) -> None:
    log = bus.log(LOG)
    for seq, data in enumerate([b'{"id":"a"}', b'{"id":"b"}', b"\xff", b'{"id":"d"}']):
        await log.append(data, expected=seq)
    _, commits = await read_log(bus)
    assert [(seq, commit.id) for seq, commit in commits] == [(1, "a"), (2, "b"), (3, ""), (4, "d")]
    ledger = Ledger()
    ledger.fold(1, Commit(id="a"))
    await write_snapshot(bus, ledger)
    ledger, commits = await read_log(bus)
    assert (ledger.seq, [seq for seq, _ in commits]) == (1, [2, 3, 4])


async def test_a_log_with_a_hole_is_an_error(bus: Bus) -> None:
    log = bus.log(LOG)
    for seq in range(4):
        await log.append(b"{}", expected=seq)
    await bus.request("$JS.API.STREAM.MSG.DELETE.MOORAGE_LEDGER", b'{"seq":2}')
    with pytest.raises(AssertionError, match="no message 2"):
        await read_log(bus)
