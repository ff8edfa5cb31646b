"""Concurrent requests about the same resource: one wins, the others are refused, and no write is partial."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from moorage.model.v2_resources import KINDS
from moorage_testkit.http_client import HttpClient, Response

from .test_v2_routes import body, make, name_of, parent_of, url
from .test_v2_table import make_cloud

GROUP = next(k for k in KINDS if k.segment == "deployment-intent-groups")
INTENT = next(k for k in KINDS if k.segment == "hpa-intents")
CONSUMER = next(k for k in KINDS if k.segment == "hpa-resource-consumers")


def at_once(*actions: Callable[[], Response]) -> list[Response]:
    """Runs all calls at once, and returns their results."""
    start = threading.Barrier(len(actions))
    found: list[Response | None] = [None] * len(actions)

    def run(number: int) -> None:
        start.wait(60)
        found[number] = actions[number]()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(actions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [one for one in found if one is not None]


def statuses(answers: list[Response]) -> Counter[int]:
    return Counter(answer.status for answer in answers)


def test_one_of_concurrent_creates_wins(rest: HttpClient) -> None:
    parent = parent_of(rest, INTENT)
    for _ in range(5):
        given = body(INTENT, name_of(INTENT))
        answers = at_once(*[lambda g=given: rest("POST", url((*parent, INTENT.segment)), g)] * 6)
        assert statuses(answers) == {201: 1, 409: 5}


def test_one_of_concurrent_changes_wins(rest: HttpClient) -> None:
    path = make(rest, INTENT, parent_of(rest, INTENT))
    for turn in range(5):
        tag = rest("GET", url(path)).headers["etag"]

        def change(number: int, tag: str = tag, turn: int = turn) -> Response:
            given = body(INTENT, path[-1])
            given["metadata"]["description"] = f"{turn} {number}"
            return rest("PUT", url(path), given, If_Match=tag)

        answers = at_once(*(lambda n=n: change(n) for n in range(6)))
        assert statuses(answers) == {200: 1, 412: 5}
        (won,) = (answer for answer in answers if answer.status == 200)
        assert rest.must(200, "GET", url(path)) == won.body


def test_one_of_concurrent_deletes_wins(rest: HttpClient) -> None:
    parent = parent_of(rest, INTENT)
    for _ in range(5):
        path = make(rest, INTENT, parent)
        answers = at_once(*[lambda p=path: rest("DELETE", url(p))] * 4)
        counts = statuses(answers)
        assert counts[204] >= 1 and counts.keys() <= {204, 404, 409}
        assert rest("GET", url(path)).status == 404


def test_a_concurrent_change_and_delete_do_not_both_succeed(rest: HttpClient) -> None:
    parent = parent_of(rest, INTENT)
    for _ in range(8):
        path = make(rest, INTENT, parent)
        tag = rest("GET", url(path)).headers["etag"]
        put, gone = at_once(
            lambda p=path, t=tag: rest("PUT", url(p), body(INTENT, p[-1]), If_Match=t),  # type: ignore[misc]
            lambda p=path, t=tag: rest("DELETE", url(p), If_Match=t),  # type: ignore[misc]
        )
        assert (put.status, gone.status) in {(200, 412), (200, 409), (404, 204), (412, 204), (409, 204)}, (put, gone)
        assert rest("GET", url(path)).status == (200 if put.status == 200 else 404)


def test_no_child_is_created_without_its_parent(rest: HttpClient) -> None:
    parent = parent_of(rest, INTENT)
    for _ in range(8):
        path = make(rest, INTENT, parent)
        child = body(CONSUMER, "c")
        made, gone = at_once(
            lambda p=path, c=child: rest("POST", url((*p, CONSUMER.segment)), c),  # type: ignore[misc]
            lambda p=path: rest("DELETE", url(p)),  # type: ignore[misc]
        )
        assert (made.status, gone.status) in {(201, 409), (404, 204), (409, 204)}, (made, gone)


def test_a_group_that_is_being_changed_is_not_deleted(rest: HttpClient) -> None:
    v1 = HttpClient(rest.mesh, "/v1")
    manifest: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {}}

    def document(number: int) -> dict[str, Any]:
        app = {"name": "a", "manifests": [{**manifest, "data": {"n": str(number)}}]}
        return {"kind": "Application", "metadata": {"name": "torn", "project": "races"}, "spec": {"apps": [app]}}

    for turn in range(8):
        v1.must(200, "POST", "/apply", document(turn))
        tag = v1("GET", "/applications/races/torn").headers["etag"]
        changed, gone = at_once(
            lambda n=turn, t=tag: v1("POST", "/apply", document(n + 100), If_Match=t),  # type: ignore[misc]
            lambda t=tag: v1("DELETE", "/applications/races/torn", If_Match=t),  # type: ignore[misc]
        )
        assert (changed.status, gone.status) in {(200, 412), (412, 202), (412, 204)}, (changed, gone)
        if changed.status == 200:
            assert v1.must(200, "GET", "/groups/races/torn/v1/default")["state"] == "Instantiated"
    v1("DELETE", "/applications/races/torn")


def test_lifecycle_steps_of_a_group_are_serialized(rest: HttpClient) -> None:
    group = make(rest, GROUP, parent_of(rest, GROUP))
    app = {
        "metadata": {"name": "a"},
        "spec": {"manifests": [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}}]},
    }
    rest.must(201, "POST", url((*group[:5], "apps")), app)
    make_cloud(rest, group)
    answers = at_once(*[lambda: rest("POST", url((*group, "approve")))] * 5)
    assert {(a.status, a.body["state"]) for a in answers} == {(202, "Approved")}
    assert sum(a.body["outcome"] == "approved" for a in answers) == 1
    answers = at_once(*[lambda: rest("POST", url((*group, "instantiate")))] * 5)
    assert {(a.status, a.body["state"], a.body["revision"]) for a in answers} == {(202, "Instantiated", 1)}
    answers = at_once(
        *[lambda: rest("POST", url((*group, "terminate")))] * 3,
        *[lambda: rest("POST", url((*group, "instantiate")))] * 3,
    )
    assert {a.status for a in answers} == {202}
    rest.must(202, "POST", url((*group, "terminate")))
    rest.until(url((*group, "status")), lambda found: found["phase"] == "Terminated")
