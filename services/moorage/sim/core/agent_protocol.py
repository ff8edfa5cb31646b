"""The agents' side of the protocol for one simulated cluster: what it says next, and what an answer means to it. Three
conversations (reports, asking, confirming), each with one message under way at a time, which is said again as it was
until somebody answers."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from moorage.model.desired import Confirm, DesiredApp, DesiredReply
from moorage.model.problems import problem_in
from moorage.model.reports import ReportReply, parts_of
from moorage.telemetry import tracing

from .cluster import AppKey, SimulatedCluster
from .cluster_spec import ClusterSpec, encode

#: After this long without an answer a message is said again.
PATIENCE = 3.0
_REPLIES = 64

_report_reply = lru_cache(_REPLIES)(msgspec.json.Decoder(ReportReply).decode)
_desired_reply = msgspec.json.Decoder(DesiredReply).decode


class Send(NamedTuple):
    verb: str  # report, ask or confirm
    cluster: str
    payload: bytes
    token: str  # comes back in the subject of the answer


class Channel:
    """One message under way. `nonce` tells an answer from one to an older message."""

    __slots__ = ("nonce", "payload", "since")

    def __init__(self) -> None:
        self.payload: bytes | None = None
        self.nonce = 0
        self.since = 0.0


class SimulatedAgent:
    """`out` gets what is to be sent; `state` is new, introducing, known, refused, leaving or gone."""

    __slots__ = ("again", "applying", "asking", "cluster", "confirmed", "confirming", "confirms", "fault", "fault_until", "flushing", "full", "generation", "have", "have_json", "index", "origin", "out", "part", "parts", "period", "reason", "received", "reporting", "seq", "session", "state", "succeeds", "traced", "tries")  # fmt: skip

    def __init__(self, spec: ClusterSpec, index: int, session: str, succeeds: str, out: list[Send]) -> None:
        self.cluster = SimulatedCluster(spec)
        self.index = index
        self.session = self.origin = session
        self.tries = 0  # sessions that were refused
        self.succeeds = succeeds
        self.out = out
        self.seq = 0
        self.state = "new"
        self.reason = ""
        self.period = 2.0
        self.full = True
        self.flushing = False
        self.parts: deque[bytes] = deque()
        self.reporting, self.asking, self.confirming = Channel(), Channel(), Channel()
        self.again = False
        self.part = 0
        self.have: dict[str, int] = {}
        self.have_json = b"{}"
        self.received: deque[DesiredApp] = deque()
        self.generation = 0  # of the patcher heard last
        self.confirms: dict[AppKey, Confirm] = {}
        self.confirmed: dict[AppKey, bytes] = {}
        self.applying: dict[AppKey, Any] = {}  # spans, where there are traces, until it runs
        self.traced: dict[AppKey, str] = {}  # what confirmations go on with
        self.fault = ""
        self.fault_until = float("inf")

    @property
    def id(self) -> str:
        return self.cluster.spec.id

    @property
    def holds(self) -> bool:
        """Something of the mesh's groups is here, or on its way."""
        return bool(self.cluster.apps or self.received)

    # --- saying

    def _say(self, channel: Channel, verb: str, payload: bytes, now: float) -> None:
        channel.payload, channel.since = payload, now
        channel.nonce += 1
        self._send(channel, verb)

    def _send(self, channel: Channel, verb: str) -> None:
        if channel.payload is not None and self.fault != "silent":
            self.out.append(Send(verb, self.id, channel.payload, f"{verb[0]}{self.index}.{channel.nonce}"))

    def _repeat(self, now: float) -> None:
        for channel, verb in ((self.reporting, "report"), (self.asking, "ask"), (self.confirming, "confirm")):
            if channel.payload is not None and now - channel.since >= PATIENCE:
                channel.since = now
                self._send(channel, verb)

    def beat(self, now: float, wall: float) -> None:
        """Once a period: something new or a heartbeat, and asking what should run."""
        self._repeat(now)
        if self.fault == "replay" and self.state == "known":
            self._replay(wall)
        self.report(now, wall, heartbeat=True)
        if self.state == "known":
            self.ask(now)
        self.tell(now, wall)

    def report(self, now: float, wall: float, *, heartbeat: bool = False) -> None:
        """A full report if one is due, else what changed, else (if asked for) that all is as before."""
        if self.reporting.payload is not None or self.state == "gone":
            return
        cluster = self.cluster
        if self.state == "leaving":
            self.seq += 1
            self._say(self.reporting, "report", self._envelope(wall, 0, 1, b'"kind":"full","leaving":true'), now)
        elif self.full or self.state == "refused":
            self.full = False
            self.seq += 1
            self.parts = self._parts(wall)
            cluster.dirty_nodes.clear()
            cluster.dirty_pods.clear()
            cluster.gone_pods.clear()
            self._say(self.reporting, "report", self.parts.popleft(), now)
        elif cluster.dirty_nodes or cluster.dirty_pods or cluster.gone_pods:
            self.seq += 1
            nodes, pods = list(cluster.rows(sorted(cluster.dirty_nodes))), list(cluster.pod_rows(cluster.dirty_pods))
            gone = sorted(cluster.gone_pods - cluster.pods.keys())
            cluster.dirty_nodes, cluster.dirty_pods, cluster.gone_pods = set(), set(), set()
            self.parts = deque(self._cut(wall, "delta", nodes, pods, gone))
            self._say(self.reporting, "report", self.parts.popleft(), now)
        elif heartbeat:
            self.seq += 1
            self._say(self.reporting, "report", self._envelope(wall, 0, 1, b'"kind":"delta"'), now)

    def _envelope(self, wall: float, part: int, parts: int, rest: bytes) -> bytes:
        session = self.session.encode()  # the same for all clusters of a process
        head = b'{"id":"%b.%d.%d","session":"%b","seq":%d,"part":[%d,%d],"asOf":%.3f,%b}'
        return head % (session, self.index, self.seq, session, self.seq, part, parts, wall, rest)

    def _parts(self, wall: float) -> deque[bytes]:
        cluster = self.cluster
        more = b',"labels":%b' % encode(cluster.spec.labels)
        if self.succeeds:
            more += b',"succeeds":%b' % encode(self.succeeds)
        return deque(self._cut(wall, "full", cluster.rows(), cluster.pod_rows(cluster.pods), more=more))

    def _cut(
        self,
        wall: float,
        kind: str,
        nodes: Iterable[bytes],
        pods: Iterable[bytes],
        gone: Iterable[str] = (),
        more: bytes = b"",
    ) -> list[bytes]:
        """The report in parts; `more` stands in each of them."""
        bodies = parts_of({"nodes": nodes, "pods": pods, "podsGone": map(encode, gone)})
        return [
            self._envelope(wall, i, len(bodies), b'"kind":"%b"%b%b' % (kind.encode(), body, more))
            for i, body in enumerate(bodies)
        ]

    def _replay(self, wall: float) -> None:
        """The very first report once more, as if the network had kept it."""
        seq, self.seq = self.seq, 1
        for payload in self._cut(wall - 60, "full", self.cluster.original_rows(), ()):
            self.out.append(Send("report", self.id, payload, f"x{self.index}.0"))
        self.seq = seq

    def ask(self, now: float) -> None:
        """What should run? Said once at a time; a hint meanwhile asks again afterwards."""
        if self.asking.payload is not None:
            self.again = True
            return
        self.again = False
        body = b'{"have":%b,"part":%d}' % (self.have_json, self.part) if self.part else b'{"have":%b}' % self.have_json
        self._say(self.asking, "ask", body, now)

    def tell(self, now: float, wall: float) -> None:
        """Confirm what became of apps, one after the other; only what is new."""
        cluster = self.cluster
        for key in list(cluster.dirty_apps):
            one = cluster.confirm(key)
            if self.applying and all(o.state != "Progressing" for o in one.objects):
                self._applied(key)
            content = encode(one)
            if self.confirmed.get(key) != content:
                self.confirmed[key] = content
                self.confirms[key] = one
        cluster.dirty_apps.clear()
        if self.confirming.payload is None and self.confirms:
            key = next(iter(self.confirms))
            one = self.confirms.pop(key)
            one.as_of, one.traceparent = wall, self.traced.get(key, "")
            self._say(self.confirming, "confirm", encode(one), now)

    # --- hearing

    def heard(self, token: str, nonce: int, data: bytes, now: float, wall: float) -> bool:
        """An answer; True if it ended the introduction of this cluster one way or the other."""
        if self.fault == "silent":
            return False
        channel = {"r": self.reporting, "a": self.asking, "c": self.confirming}.get(token)
        if channel is None or channel.nonce != nonce or channel.payload is None:
            return False
        if not data or problem_in(data) is not None:
            channel.since = min(channel.since, now - PATIENCE + 0.5)  # nobody there, or busy: soon once more
            return False
        channel.payload = None
        if channel is self.reporting:
            return self._reported(data, now, wall)
        if channel is self.asking:
            self._answered(data, now)
        else:
            self.tell(now, wall)
        return False

    def _reported(self, data: bytes, now: float, wall: float) -> bool:
        reply = _report_reply(data)
        self.period = max(0.05, reply.period_ms / 1e3)
        before = self.state
        if before == "leaving":
            self.state = "gone"
            return True
        if reply.refused:
            self.state, self.reason, self.full = "refused", reply.refused, True
            self.parts.clear()
            # A session that was replaced stays so. A new one is taken once nobody else is heard: it succeeds nobody, so
            # that two that live never take the cluster from each other in turns.
            self.tries += 1
            self.session, self.succeeds = f"{self.origin}.again{self.tries}", ""
            return before != "refused"
        if reply.resync:
            self.parts.clear()
            self.full = True
            self.report(now, wall)
            return False
        if self.parts:
            self._say(self.reporting, "report", self.parts.popleft(), now)
            return False
        self.state, self.reason, self.succeeds = "known", "", ""
        if before != "known":
            self.ask(now)
        cluster = self.cluster
        if self.full or cluster.dirty_nodes or cluster.dirty_pods or cluster.gone_pods:
            self.report(now, wall)
        return before != "known"

    def _answered(self, data: bytes, now: float) -> None:
        reply = _desired_reply(data)
        if reply.generation < self.generation:  # of a patcher that was replaced
            return
        self.generation = reply.generation
        for app in sorted(reply.apps, key=lambda app: app.version):
            name = f"{app.group} {app.app}"
            if self.have.get(name, 0) < app.version:
                if self.fault != "refuse":
                    self.have[name] = app.version
                self.received.append(app)
            else:
                self._say_again(app)
        index, count = reply.part
        # All parts answer the same question, so it is changed only after the last.
        self.part = index + 1 if index + 1 < count else 0
        if not self.part and reply.apps:
            self.have_json = encode(self.have)
        if self.part or self.again:
            self.ask(now)

    def _say_again(self, app: DesiredApp) -> None:
        """A version that is here, named again: the patcher does not know what became of it."""
        key = (app.group, app.app)
        if self.cluster.versions.get(key, 0) >= app.version:
            self.confirmed.pop(key, None)
            self.cluster.dirty_apps[key] = None

    def take(self, app: DesiredApp, now: float) -> None:
        """Apply a version, or refuse it while told to."""
        key = (app.group, app.app)
        self._applied(key)
        span = tracing.taken("apply", app.traceparent, **{"moorage.cluster": self.id, "moorage.app": app.app})
        if span is not None:
            self.applying[key], self.traced[key] = span, tracing.traceparent_of(span)
        if self.fault == "refuse":
            refusal = self.cluster.refuse(app, "admission webhook denied the request: this cluster refuses")
            # Handed out again every period, and answered as often: nobody else would repeat what gets lost.
            self.confirmed[key], self.confirms[key] = encode(refusal), refusal
            name = f"{app.group} {app.app}"
            if self.have.get(name) == app.version:  # it came before the cluster began to refuse
                self.have[name] = self.cluster.versions.get(key, 0)
                if not self.part:
                    self.have_json = encode(self.have)
            return
        self.cluster.apply(app, now)

    def _applied(self, key: AppKey) -> None:
        """It is what it is to be, or somebody wants something else."""
        if (span := self.applying.pop(key, None)) is not None:
            span.end()

    def rejoin(self, session: str) -> None:
        """Begin anew with another specification, as the same source."""
        self.full = True
        if self.state != "new":
            self.state = "introducing"
        self.session = session or self.session
