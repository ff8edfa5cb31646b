"""The agent's side of the protocol for one simulated cluster.

An agent has three channels: it reports, asks for desired state, and confirms. Each channel has one message in flight at a
time, which is resent unchanged until a reply arrives.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from moorage.model.desired_state import DesiredApp, DesiredReply, Pins
from moorage.model.machines import MachinesSynced
from moorage.model.problems import problem_in
from moorage.model.reports import ReportReply, parts_of
from moorage.model.status import Confirm
from moorage.telemetry import tracing

from .applied_apps import AppKey
from .cluster import SimulatedCluster
from .cluster_rows import node_rows, original_rows, pod_rows
from .cluster_spec import ClusterSpec, encode

#: A message without a reply is resent after this many seconds.
RESEND_AFTER = 3.0
#: What is known of an app is forgotten this many seconds after its removal was confirmed, or once so many others were removed
#: since. Until then the patcher may name the app again; after that it is removed again, which changes nothing.
REMEMBERED_FOR, REMEMBERED_APPS = 120.0, 4096

#: Seconds between two reports of Machines without changes.
SYNC_PERIOD = 10.0

#: Cached by their bytes, because most replies are equal.
_decode_report_reply = lru_cache(64)(msgspec.json.Decoder(ReportReply).decode)
_decode_synced = msgspec.json.Decoder(MachinesSynced).decode
_desired_reply = msgspec.json.Decoder(DesiredReply).decode


class Send(NamedTuple):
    """A message to send for a cluster."""

    verb: str  # report, ask or confirm
    cluster: str
    payload: bytes
    token: str  # returns in the subject of the reply


class Channel:
    """A message in flight. `nonce` distinguishes its reply from replies to older messages."""

    __slots__ = ("nonce", "payload", "since")

    def __init__(self) -> None:
        self.payload: bytes | None = None
        self.nonce = 0
        self.since = 0.0


class SimulatedAgent:
    """The agent of one cluster. `out` collects the messages to send, which the simulator takes out. `state` is new,
    introducing, known, refused, leaving or gone."""

    __slots__ = ("apply_spans", "ask_again", "asking", "cluster", "confirmed", "confirming", "confirms", "fault", "fault_until", "flushing", "full", "generation", "have", "have_json", "index", "origin", "out", "part", "parts", "period", "pins", "reason", "received", "refusals", "removed", "removing", "reporting", "seq", "session", "state", "succeeds", "sync_again", "synced_at", "syncing", "traceparents")  # fmt: skip

    def __init__(self, spec: ClusterSpec, index: int, session: str, succeeds: str, wall: float = 0.0) -> None:
        self.cluster = SimulatedCluster(spec, wall)
        self.index = index
        self.session = self.origin = session
        self.refusals = 0  # sessions that were refused
        self.succeeds = succeeds
        self.out: list[Send] = []
        self.seq = 0
        self.state = "new"
        self.reason = ""
        self.period = 2.0
        self.full = True
        self.flushing = False
        self.parts: deque[bytes] = deque()
        self.reporting, self.asking, self.confirming = Channel(), Channel(), Channel()
        self.syncing = Channel()  # of Machines
        self.sync_again = False
        self.synced_at = 0.0
        self.ask_again = False
        self.part = 0
        self.have: dict[str, int] = {}
        self.have_json = b"{}"
        self.pins: dict[str, str] = {}  # app → tag of the slots to which its pods are pinned
        self.received: deque[DesiredApp] = deque()
        self.generation = 0  # of the patcher that replied last
        self.confirms: dict[AppKey, Confirm] = {}
        self.confirmed: dict[AppKey, bytes] = {}
        self.apply_spans: dict[AppKey, Any] = {}  # open until the app runs; empty without tracing
        self.traceparents: dict[AppKey, str] = {}  # continued by confirmations
        self.removing: AppKey | None = None  # the app whose removal is being confirmed
        self.removed: dict[AppKey, float] = {}  # when the removal of these apps was confirmed
        self.fault = ""
        self.fault_until = float("inf")

    @property
    def id(self) -> str:
        return self.cluster.spec.id

    @property
    def has_apps(self) -> bool:
        """Returns whether an app of the mesh is applied here, or was received."""
        return bool(self.cluster.applied.apps or self.received)

    # --- sending

    def _send_new(self, channel: Channel, verb: str, payload: bytes, now: float) -> None:
        channel.payload, channel.since = payload, now
        channel.nonce += 1
        self._send(channel, verb)

    def _send(self, channel: Channel, verb: str) -> None:
        if channel.payload is not None and self.fault != "silent":
            self.out.append(Send(verb, self.id, channel.payload, f"{verb[0]}{self.index}.{channel.nonce}"))

    def _resend(self, now: float) -> None:
        channels = (
            (self.reporting, "report"),
            (self.asking, "ask"),
            (self.confirming, "confirm"),
            (self.syncing, "machines"),
        )
        for channel, verb in channels:
            if channel.payload is not None and now - channel.since >= RESEND_AFTER:
                channel.since = now
                self._send(channel, verb)

    def beat(self, now: float, wall: float) -> None:
        """Reports changes or a heartbeat once per period, and asks for desired state."""
        self._resend(now)
        self._forget_removed(now)
        if self.fault == "replay" and self.state == "known":
            self._replay(wall)
        self.report(now, wall, heartbeat=True)
        if self.state == "known":
            self.ask(now)
        self.send_confirmation(now, wall)
        if self.cluster.machines is not None and now - self.synced_at >= SYNC_PERIOD:
            self.sync_machines(now, again=True)

    def sync_machines(self, now: float, *, again: bool = False) -> None:
        """Reports what changed of Machines and guests. `again`: also if nothing did, because slots may have changed."""
        machines = self.cluster.machines
        if machines is None or self.state != "known":
            return
        if self.syncing.payload is not None:
            self.sync_again = self.sync_again or again
        elif again or self.sync_again or machines.has_news:
            self.sync_again = False
            self.synced_at = now
            self._send_new(self.syncing, "machines", encode(machines.report()), now)

    def report(self, now: float, wall: float, *, heartbeat: bool = False) -> None:
        """Sends a full report if one is due, else the changes, else (with `heartbeat`) an empty delta."""
        if self.reporting.payload is not None or self.state == "gone":
            return
        due_in_full = self.full or self.state == "refused"
        if not (self.state == "leaving" or due_in_full or self._has_changes() or heartbeat):
            return
        self.seq += 1
        if self.state == "leaving":
            self.parts = deque([self._envelope(wall, 0, 1, b'"kind":"full","leaving":true')])
        elif due_in_full:
            self.full = False
            self.parts = self._full_report(wall)
        elif self._has_changes():
            self.parts = self._delta_report(wall)
        else:
            self.parts = deque([self._envelope(wall, 0, 1, b'"kind":"delta"')])
        self._send_new(self.reporting, "report", self.parts.popleft(), now)

    def _has_changes(self) -> bool:
        """Returns whether nodes or pods changed since the last report."""
        return bool(self.cluster.dirty_nodes or self.cluster.dirty_pods or self.cluster.gone_pods)

    def _envelope(self, wall: float, part: int, parts: int, rest: bytes) -> bytes:
        session = self.session.encode()  # the same for all clusters of a process
        head = b'{"id":"%b.%d.%d","session":"%b","seq":%d,"part":[%d,%d],"asOf":%.3f,%b}'
        return head % (session, self.index, self.seq, session, self.seq, part, parts, wall, rest)

    def _full_report(self, wall: float) -> deque[bytes]:
        cluster = self.cluster
        cluster.dirty_nodes.clear()
        cluster.dirty_pods.clear()
        cluster.gone_pods.clear()
        fields = b',"labels":%b' % encode(cluster.spec.labels)
        if self.succeeds:
            fields += b',"succeeds":%b' % encode(self.succeeds)
        return deque(
            self._split_report(wall, "full", node_rows(cluster), pod_rows(cluster, cluster.pods), fields=fields)
        )

    def _delta_report(self, wall: float) -> deque[bytes]:
        cluster = self.cluster
        nodes, pods = list(node_rows(cluster, sorted(cluster.dirty_nodes))), list(pod_rows(cluster, cluster.dirty_pods))
        gone = sorted(cluster.gone_pods - cluster.pods.keys())
        cluster.dirty_nodes, cluster.dirty_pods, cluster.gone_pods = set(), set(), set()
        return deque(self._split_report(wall, "delta", nodes, pods, gone))

    def _split_report(
        self,
        wall: float,
        kind: str,
        nodes: Iterable[bytes],
        pods: Iterable[bytes],
        gone: Iterable[str] = (),
        fields: bytes = b"",
    ) -> list[bytes]:
        """Splits a report into parts, each with the additional `fields`."""
        bodies = parts_of({"nodes": nodes, "pods": pods, "podsGone": map(encode, gone)})
        return [
            self._envelope(wall, i, len(bodies), b'"kind":"%b"%b%b' % (kind.encode(), body, fields))
            for i, body in enumerate(bodies)
        ]

    def _replay(self, wall: float) -> None:
        """Sends the very first report again, as a network that delays messages would."""
        seq, self.seq = self.seq, 1
        for payload in self._split_report(wall - 60, "full", original_rows(self.cluster.spec), ()):
            self.out.append(Send("report", self.id, payload, f"x{self.index}.0"))
        self.seq = seq

    def ask(self, now: float) -> None:
        """Asks for desired state. A hint while a request is in flight makes the agent ask again after the reply."""
        if self.asking.payload is not None:
            self.ask_again = True
            return
        self.ask_again = False
        body = b'{"have":%b' % self.have_json
        if self.pins:
            body += b',"pins":%b' % encode(self.pins)
        if self.part:
            body += b',"part":%d' % self.part
        self._send_new(self.asking, "ask", body + b"}", now)

    def send_confirmation(self, now: float, wall: float) -> None:
        """Confirms the status of apps where it changed, one app at a time."""
        cluster = self.cluster
        for key in list(cluster.dirty_apps):
            confirm = cluster.applied.confirm(key)
            if self.apply_spans and all(o.state != "Progressing" for o in confirm.objects):
                self._end_span(key)
            content = encode(confirm)
            if self.confirmed.get(key) != content:
                self.confirmed[key] = content
                self.confirms[key] = confirm
        cluster.dirty_apps.clear()
        if self.confirming.payload is None and self.confirms:
            key = next(iter(self.confirms))
            confirm = self.confirms.pop(key)
            confirm.as_of, confirm.traceparent = wall, self.traceparents.get(key, "")
            self.removing = key if confirm.removed else None
            self._send_new(self.confirming, "confirm", encode(confirm), now)

    # --- receiving

    def on_reply(self, token: str, nonce: int, data: bytes, now: float, wall: float) -> bool:
        """Handles a reply. Returns True if the inventory has now accepted, refused or removed the cluster."""
        if self.fault == "silent":
            return False
        channel = {"r": self.reporting, "a": self.asking, "c": self.confirming, "m": self.syncing}.get(token)
        if channel is None or channel.nonce != nonce or channel.payload is None:
            return False
        if not data or problem_in(data) is not None:
            channel.since = min(channel.since, now - RESEND_AFTER + 0.5)  # no responder, or an error: resend soon
            return False
        channel.payload = None
        if channel is self.reporting:
            return self._on_report_reply(data, now, wall)
        if channel is self.asking:
            self._on_desired_reply(data, now)
        elif channel is self.syncing:
            self._on_synced(data, now, wall)
        else:
            if self.removing is not None:
                self.removed.pop(self.removing, None)
                self.removed[self.removing] = now
            self.send_confirmation(now, wall)
        return False

    def _on_synced(self, data: bytes, now: float, wall: float) -> None:
        machines = self.cluster.machines
        if machines is None:
            return
        answer = _decode_synced(data)
        machines.take(answer, wall)
        if answer.resync:
            self.sync_again = True
        self.cluster.run_machines(now)
        self.sync_machines(now)

    def _ask_for_wanted_again(self, now: float) -> None:
        """Asks once more for the versions of apps that got an object back."""
        again = [key for key in self.cluster.applied.wanted_again if key in self.cluster.applied.apps]
        self.cluster.applied.wanted_again.clear()
        for key in again:
            self.have[f"{key[0]} {key[1]}"] = 0
        if again:
            self.have_json = encode(self.have)
            self.ask(now)

    def _forget_removed(self, now: float) -> None:
        """Forgets apps that were removed long ago, so that nothing grows with the number of apps that ever were."""
        if self.part:  # all parts answer the same request
            return
        forgotten = False
        for key, since in list(self.removed.items()):
            if now - since < REMEMBERED_FOR and len(self.removed) <= REMEMBERED_APPS:
                break
            del self.removed[key]
            if (
                key in self.cluster.applied.apps
                or key in self.confirms
                or any((a.group, a.app) == key for a in self.received)
            ):
                continue  # it came again
            forgotten = True
            self.have.pop(f"{key[0]} {key[1]}", None)
            self.pins.pop(f"{key[0]} {key[1]}", None)
            self.confirmed.pop(key, None)
            self.traceparents.pop(key, None)
            self.cluster.applied.versions.pop(key, None)
        if forgotten:
            self.have_json = encode(self.have)

    def _on_report_reply(self, data: bytes, now: float, wall: float) -> bool:
        reply = _decode_report_reply(data)
        self.period = max(0.05, reply.period_ms / 1e3)
        before = self.state
        if before == "leaving":
            self.state = "gone"
            return True
        if reply.refused:
            self.state, self.reason, self.full = "refused", reply.refused, True
            self.parts.clear()
            # A replaced session stays refused. A new session is accepted once the other one is silent. It does not succeed
            # it, so that two living agents never take the cluster from each other in turns.
            self.refusals += 1
            self.session, self.succeeds = f"{self.origin}.again{self.refusals}", ""
            return before != "refused"
        if reply.resync:
            self.parts.clear()
            self.full = True
            self.report(now, wall)
            return False
        if self.parts:
            self._send_new(self.reporting, "report", self.parts.popleft(), now)
            return False
        self.state, self.reason, self.succeeds = "known", "", ""
        if before != "known":
            self.ask(now)
        if self.full or self._has_changes():
            self.report(now, wall)
        return before != "known"

    def _on_desired_reply(self, data: bytes, now: float) -> None:
        reply = _desired_reply(data)
        if reply.generation < self.generation:  # from a patcher that was replaced
            return
        self.generation = reply.generation
        for app in sorted(reply.apps, key=lambda app: app.version):
            name = f"{app.group} {app.app}"
            self._take_pins(app, Pins() if app.remove else app.pins, now)
            if self.have.get(name, 0) < app.version:
                if self.fault != "refuse":
                    self.have[name] = app.version
                self.received.append(app)
            else:
                self._confirm_again(app)
        index, count = reply.part
        # All parts answer the same request, so the versions in it change only after the last part.
        self.part = index + 1 if index + 1 < count else 0
        if not self.part and reply.apps:
            self.have_json = encode(self.have)
        if self.part or self.ask_again:
            self.ask(now)

    def _take_pins(self, app: DesiredApp, pins: Pins | None, now: float) -> None:
        name = f"{app.group} {app.app}"
        if pins is None or pins.tag == self.pins.get(name, ""):
            return
        self.pins[name] = pins.tag
        if not pins.tag:
            del self.pins[name]
        self.cluster.set_pins((app.group, app.app), pins, now)

    def _confirm_again(self, app: DesiredApp) -> None:
        """Confirms a version again that was applied earlier: sending it again means that the patcher lost its status."""
        key = (app.group, app.app)
        if self.cluster.applied.versions.get(key, 0) >= app.version:
            self.confirmed.pop(key, None)
            self.cluster.dirty_apps[key] = None

    def apply_version(self, app: DesiredApp, now: float) -> None:
        """Applies a version of an app, or refuses it under the fault `refuse`."""
        key = (app.group, app.app)
        self._end_span(key)
        span = tracing.open_stored_span(
            "apply", app.traceparent, **{"moorage.cluster": self.id, "moorage.app": app.app}
        )
        if span is not None:
            self.apply_spans[key], self.traceparents[key] = span, tracing.traceparent_of(span)
        if self.fault == "refuse":
            refusal = self.cluster.applied.refuse(app, "admission webhook denied the request: this cluster refuses")
            # The version is handed out and refused again every period, because nothing else repeats a lost refusal.
            self.confirmed[key], self.confirms[key] = encode(refusal), refusal
            name = f"{app.group} {app.app}"
            if self.have.get(name) == app.version:  # received before the cluster began to refuse
                self.have[name] = self.cluster.applied.versions.get(key, 0)
                if not self.part:
                    self.have_json = encode(self.have)
            return
        self.cluster.apply(app, now)
        self._ask_for_wanted_again(now)

    def _end_span(self, key: AppKey) -> None:
        """Ends the span of an app that runs, or that a newer version replaces."""
        if (span := self.apply_spans.pop(key, None)) is not None:
            span.end()

    def rejoin(self, session: str) -> None:
        """Reports in full again, after a change of the specification."""
        self.full = True
        if self.state != "new":
            self.state = "introducing"
        self.session = session or self.session
