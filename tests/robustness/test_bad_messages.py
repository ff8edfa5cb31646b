"""Sends unreadable, wrongly typed and too large messages on every subject: requests are refused with a code, messages are
stored for an operator, and every worker continues."""

from __future__ import annotations

import asyncio
import base64
import re
from collections import Counter

import msgspec
import pytest

from moorage.bus import Bus, NoAnswer
from moorage.mesh import SubjectRow
from moorage.mesh.discovery import installed
from moorage_testkit.mesh import Mesh
from moorage_testkit.mesh_client import MeshClient, application, eventually, fleet

from .conftest import MakeMesh

CLUSTER = "lab.c-1"
#: Values of the variable part of a pattern. The controller is a built-in, so that its real process gets the message.
NAMES = {
    "moorage.controllers.*.candidates": ["hpa", "labels", "affinity", "topology", "resource-class"],
    "moorage.controllers.*.candidates.many": ["hpa", "labels", "affinity", "topology", "resource-class"],
    "moorage.controllers.*.actions": ["hpa"],
    "moorage.controllers.*.register": ["stranger"],
    "moorage.controllers.*.leave": ["stranger"],
}
UNREADABLE = {
    "bytes": b"\xff\xfe\x00",
    "cut off": b'{"name": "x", "apps": [',
    "too deep": b"[" * 100_000,
    "a list": b"[1, 2]",
    "a number": b"7",
}
#: Readable, but with a wrong type in every field of any message.
WRONG = msgspec.json.encode(
    {
        key: {"odd": [None]}
        for key in re.findall(
            r"\w+",
            """kind name project group verb record revision id cause session seq part nodes pods have version objects app
            cluster clusters labels cordoned fault seconds limit continue deadlineMs policy weight apps intents budgetMs
            asks path body actions replies controllers apiVersion metadata spec token public user""",
        )
    }
)
#: Fleets and manifests may be as large as a message can be.
UNBOUNDED = {"moorage.sim.apply", "moorage.controllers.*.actions"}
TOO_MUCH = (8 << 20) - 1024
#: Codes of messages that are stored: an unreadable message may be the sign of a fault elsewhere; an invalid one was answered.
KEPT = {"Undecodable", "TooDeep", "TooLarge"}


def concrete(row: SubjectRow) -> list[str]:
    pattern = row.pattern.replace("<provider>.<cluster>", CLUSTER)
    if row.pattern in NAMES:
        return [pattern.replace("*", name) for name in NAMES[row.pattern]]
    return [pattern.replace(".*", ".junk")]


REQUESTS = [
    pytest.param(row, subject, id=subject)
    for row in installed().subjects
    if row.request and not row.pattern.startswith("$")
    for subject in concrete(row)
]
#: Subjects of hints. Streams and events are written by workers alone and read as records.
HINTS = [
    subject
    for row in installed().subjects
    if not row.request
    and row.pattern.startswith(
        ("moorage.groups.", "moorage.merger.", "moorage.desired.changed", "moorage.machines.changed")
    )
    for subject in concrete(row)
] + [
    "moorage.controllers.stranger.changed",
    "moorage.ledger.commit",
    "moorage.records.decisions",
    "moorage.records.history",
    "moorage.rejected.junk",
    "moorage.events.audit.x.y",
    "moorage.events.fleet.devices.a.b",
    "moorage.events.fleet.x.a.b",
    "moorage.events.intents.x.a.b.c.d",
    "moorage.events.placement.provider.changed.x",
    "moorage.events.classes.changed.x",
    "moorage.events.machines.changed.x",
    "moorage.events.decisions.placed.a.b.c.d",
]


@pytest.fixture(scope="module")
def mesh(make_mesh: MakeMesh) -> Mesh:
    return make_mesh(fleet(3, 8))


def test_every_subject_is_tested() -> None:
    tested = [
        subject for row in installed().subjects if row.request and row.pattern[0] != "$" for subject in concrete(row)
    ] + HINTS
    for row in installed().subjects:
        pattern = re.escape(row.pattern.replace("<provider>.<cluster>", CLUSTER))
        pattern = pattern.replace(r"\*", "[^.]+").replace(">", ".+")
        if row.pattern[0] != "$":  # the protocol of the broker, which accepts any payload
            assert any(re.fullmatch(pattern, subject) for subject in tested), row.pattern


async def kept_rejections(bus: Bus, subject: str, since: int) -> list[str]:
    """Returns the codes of the messages of this subject that were rejected after a sequence number."""
    log = bus.log("MOORAGE_REJECTED")
    found = []
    for seq in range(since + 1, await log.last() + 1):
        data = await log.get(seq)
        record = msgspec.json.decode(data) if data else {}
        if record.get("subject") == subject:
            found.append(record["problem"]["code"])
    return found


async def works(driver: MeshClient, name: str) -> None:
    await driver.apply(application(name))
    await driver.until_phase(name, "Running")
    await driver.delete([name])


@pytest.mark.parametrize(("row", "subject"), REQUESTS)
async def test_unreadable_requests_are_refused_with_a_code_and_stored_as_rejected(
    driver: MeshClient, row: SubjectRow, subject: str
) -> None:
    since = await driver.bus.log("MOORAGE_REJECTED").last()
    refusals: dict[str, str] = {}
    asked_again = False
    for what, junk in {**UNREADABLE, "wrong types": WRONG, "too much": b'"' + b"x" * TOO_MUCH + b'"'}.items():
        try:
            raw = await driver.bus.request(subject, junk, timeout=30)
        except NoAnswer:  # the worker restarted with the request, as on a machine that stands still for seconds
            raw, asked_again = await driver.bus.request(subject, junk, timeout=60), True
        answer = msgspec.json.decode(raw)
        problem = answer.get("problem")
        assert problem, f"{what} was taken: {str(answer)[:300]}"
        assert problem["code"] and 400 <= problem["status"] < 500, (what, problem)
        refusals[what] = problem["code"]
    if row.pattern not in UNBOUNDED:
        assert refusals["too much"] == "TooLarge"
    wanted = Counter(code for code in refusals.values() if code in KEPT)
    assert {refusals[what] for what in ("bytes", "cut off", "too deep")} <= KEPT

    async def all_kept() -> bool:
        kept = Counter(await kept_rejections(driver.bus, subject, since))
        return kept == wanted or (asked_again and kept > wanted)

    await eventually(all_kept, 40, f"each kind of what {subject} refused is kept once")


@pytest.mark.parametrize("subject", HINTS)
async def test_unreadable_hints_change_nothing(mesh: Mesh, driver: MeshClient, subject: str) -> None:
    restarts = mesh.restarts()
    since = await driver.bus.log("MOORAGE_REJECTED").last()
    for junk in (*UNREADABLE.values(), WRONG, b"", b"x" * TOO_MUCH):
        await driver.bus.publish(subject, junk)
    await driver.bus.settle()
    if subject.startswith(("moorage.groups.", "moorage.merger.", "moorage.controllers.")):

        async def all_kept() -> bool:
            codes = await kept_rejections(driver.bus, subject, since)
            return codes.count("Undecodable") >= 3 and "TooLarge" in codes

        await eventually(all_kept, 40, f"what came on {subject} is kept")
    await works(driver, "after-" + base64.b32encode(subject.encode())[:24].decode().lower().rstrip("="))
    assert mesh.restarts() == restarts


async def test_all_workers_still_work_afterwards(mesh: Mesh, driver: MeshClient) -> None:
    """Runs last, after all of the above, and sends all of it at once again."""
    restarts = mesh.restarts()

    async def ask(subject: str, junk: bytes) -> None:
        try:
            await driver.bus.request(subject, junk, timeout=60)
        except NoAnswer as error:
            raise AssertionError(f"{subject} answers nobody") from error

    subjects = [
        subject for row in installed().subjects if row.request and row.pattern[0] != "$" for subject in concrete(row)
    ]
    await asyncio.gather(*(ask(s, junk) for s in subjects for junk in (*UNREADABLE.values(), WRONG) for _ in range(3)))
    await works(driver, "afterwards")
    assert mesh.restarts() == restarts, "nobody had to be started again"

    async def is_well() -> bool:
        return (await mesh.arun("check", "-o", "json")).returncode == 0 and not driver.ledger.claims

    await eventually(is_well, 60, "the mesh is well, and no claim is left")
