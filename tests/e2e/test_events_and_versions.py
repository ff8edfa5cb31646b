"""Tests resumed event streams, CloudEvents, and conditional updates of documents."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from moorage_testkit.http_client import HttpClient
from moorage_testkit.mesh import Mesh
from moorage_testkit.polling import wait_until

INTENTS = "/v1/events?subject=moorage.events.intents.*.stream.%3E"


def document(name: str, number: int = 0) -> dict[str, Any]:
    manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "page"}, "data": {"n": str(number)}}
    spec = {"apps": [{"name": "web", "manifests": [manifest]}]}
    return {"kind": "Application", "metadata": {"name": name, "project": "stream"}, "spec": spec}


@contextlib.contextmanager
def event_stream(mesh: Mesh, path: str, **headers: str) -> Iterator[Iterator[dict[str, bytes]]]:
    """Yields the events of a stream as their fields; open as soon as the gateway has subscribed."""
    address = urlsplit(mesh.endpoint["http"])
    conn = http.client.HTTPConnection(address.hostname or "", address.port or 80, timeout=60)
    sent = {"Authorization": f"Bearer {mesh.endpoint['token']}"}
    try:
        conn.request("GET", path, headers=sent | {k.replace("_", "-"): v for k, v in headers.items()})
        reply = conn.getresponse()
        assert reply.status == 200 and reply.headers["Content-Type"] == "text/event-stream"
        assert reply.readline().startswith(b":")
        yield _events(reply)
    finally:
        conn.close()


def _events(reply: http.client.HTTPResponse) -> Iterator[dict[str, bytes]]:
    fields: dict[str, bytes] = {}
    while line := reply.readline():
        name, colon, value = line.rstrip(b"\n").partition(b": ")
        if colon and name:
            fields[name.decode()] = value
        elif fields and not line.strip():
            yield fields
            fields = {}


def test_an_event_stream_resumes_after_the_last_event_id(example: Mesh) -> None:
    rest = HttpClient(example, "")
    rest.must(200, "POST", "/v1/apply", document("s"))
    with event_stream(example, INTENTS) as events:
        rest.must(200, "POST", "/v1/apply", document("s", 1))
        last = next(e for e in events if json.loads(e["data"])["data"]["revision"] == 2)["id"].decode()
    for number in range(2, 7):
        rest.must(200, "POST", "/v1/apply", document("s", number))
    with event_stream(example, INTENTS, Last_Event_ID=last) as events:
        missed = [json.loads(next(events)["data"])["data"]["revision"] for _ in range(5)]
        rest.must(200, "POST", "/v1/apply", document("s", 7))
        assert [*missed, json.loads(next(events)["data"])["data"]["revision"]] == [3, 4, 5, 6, 7, 8]
    example.kill("gateway")  # another gateway knows the position, too
    with _when_back(example, INTENTS + f"&lastEventId={last}") as events:
        assert [json.loads(next(events)["data"])["data"]["revision"] for _ in range(6)] == [3, 4, 5, 6, 7, 8]
    with event_stream(example, INTENTS, Last_Event_ID="neverheardof") as events:
        assert next(events)["event"] == b"lost"
        rest.must(200, "POST", "/v1/apply", document("s", 8))
        assert json.loads(next(events)["data"])["data"]["revision"] == 9


@contextlib.contextmanager
def _when_back(mesh: Mesh, path: str) -> Iterator[Iterator[dict[str, bytes]]]:
    for _ in range(2000):
        try:
            with event_stream(mesh, path) as events:
                yield events
                return
        except (OSError, http.client.HTTPException):
            time.sleep(0.02)


def test_a_resumed_stream_has_every_event_once(example: Mesh) -> None:
    rest = HttpClient(example, "")
    rest.must(200, "POST", "/v1/apply", document("busy"))
    path = "/v1/events?subject=moorage.events.intents.*.stream.busy.%3E"

    def write() -> None:
        for number in range(1, 61):
            rest.must(200, "POST", "/v1/apply", document("busy", number))

    writer = threading.Thread(target=write)
    received: list[int] = []
    writer.start()
    (last,) = wait_until(lambda: rest("GET", path + "&follow=false&limit=1").body["items"], "the first event")
    received.append(last["data"]["revision"])
    ident = last["id"]
    while received[-1] < 61:
        with event_stream(example, path, Last_Event_ID=ident) as events:
            for _ in range(7):  # and gone again
                event = next(events)
                ident = event["id"].decode()
                received.append(json.loads(event["data"])["data"]["revision"])
                if received[-1] >= 61:
                    break
    writer.join()
    assert received == list(range(received[0], 62))


def test_events_are_available_as_cloudevents(example: Mesh) -> None:
    rest = HttpClient(example, "")
    rest.must(200, "POST", "/v1/apply", document("cloudy"))
    path = "/v1/events?follow=false&subject=moorage.events.intents.accepted.stream.cloudy.%3E"
    plain = wait_until(lambda: rest("GET", path).body["items"], "events come after the answer")[-1]
    answered = rest("GET", path, Accept="application/cloudevents-batch+json")
    assert answered.headers["content-type"] == "application/cloudevents-batch+json"
    event = answered.body[-1]
    assert event == {
        "specversion": "1.0",
        "id": plain["id"],
        "source": "/moorage/intents",
        "type": "dev.moorage.intents.accepted",
        "subject": "stream/cloudy/v1/default",
        "time": plain["time"],
        "datacontenttype": "application/json",
        "natssubject": plain["subject"],
        "data": plain["data"],
    } | ({"cause": plain["cause"]} if plain["cause"] else {})
    for asked in ({"Accept": "text/event-stream, application/cloudevents+json"}, {}):
        path = INTENTS if asked else INTENTS + "&format=cloudevents"
        with event_stream(example, path, **asked) as events:
            rest.must(200, "POST", "/v1/apply", document("cloudy", 1 + len(asked)))
            assert json.loads(next(events)["data"])["type"] == "dev.moorage.intents.updated"
    assert rest("GET", "/v1/events?follow=false&format=xml").status == 400


def test_if_match_prevents_lost_updates(example: Mesh) -> None:
    rest = HttpClient(example, "")
    url = "/v1/applications/stream/tagged"
    assert rest("POST", "/v1/apply", document("tagged"), If_Match="*").status == 412, "there is none yet"
    rest.must(200, "POST", "/v1/apply", document("tagged"))
    read = rest("GET", url)
    tag = read.headers["etag"]
    assert rest("GET", "/v1/groups/stream/tagged/v1/default").headers["etag"] == tag
    rest.must(200, "POST", "/v1/apply", document("tagged", 1), If_Match=tag)
    refused = rest("POST", "/v1/apply", document("tagged", 2), If_Match=tag)
    assert (refused.status, refused.code) == (412, "Changed")
    assert rest("GET", url).headers["etag"] != tag
    status = rest("GET", url).body["status"]
    assert status.get("pendingRevision", status["revision"]) == 2
    assert rest("DELETE", url, If_Match=tag).status == 412
    assert rest("POST", "/v1/apply", document("tagged", 2), If_Match="7").status == 400
    assert rest("POST", "/v1/apply", {**document("tagged", 2), "ifMatch": 7}).status == 400
    assert rest("POST", "/v1/apply", [document("tagged", 2)] * 2, If_Match=tag).status == 400
    rest.must(200, "POST", "/v1/apply", document("tagged", 2), If_Match="*")
    tag = rest("GET", url).headers["etag"]
    assert rest("DELETE", url, If_Match=tag).status in (202, 204)


def test_one_of_concurrent_if_match_updates_wins(example: Mesh) -> None:
    rest = HttpClient(example, "")
    rest.must(200, "POST", "/v1/apply", document("raced"))
    tag = rest("GET", "/v1/applications/stream/raced").headers["etag"]
    answers: list[int] = []

    def write(number: int) -> None:
        answers.append(rest("POST", "/v1/apply", document("raced", number), If_Match=tag).status)

    writers = [threading.Thread(target=write, args=(number,)) for number in range(1, 9)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert sorted(answers) == [200] + [412] * 7


def test_intents_support_if_match(example: Mesh) -> None:
    rest = HttpClient(example, "")
    intent: dict[str, Any] = {
        "kind": "PlacementIntent",
        "metadata": {"name": "there", "project": "stream"},
        "spec": {"group": "nowhere", "app": "web", "anyOf": [{"provider": "lab"}]},
    }
    rest.must(200, "POST", "/v1/apply", intent)
    url = "/v1/intents/PlacementIntent/stream/there"
    read = rest("GET", url)
    assert read.status == 200, "who wrote can read it"
    tag = read.headers["etag"]
    changed = {**intent, "spec": {**intent["spec"], "anyOf": [{"provider": "sim"}]}}
    rest.must(200, "POST", "/v1/apply", changed, If_Match=tag)
    assert rest("POST", "/v1/apply", intent, If_Match=tag).status == 412
    assert rest("DELETE", url, If_Match=tag).status == 412
    assert rest("DELETE", url, If_Match="*").status == 204
    assert rest("GET", url).status == 404
