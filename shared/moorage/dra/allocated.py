"""Keeps which devices are allocated, by the ResourceClaims of anyone. A claim that is allocated takes its devices even while no
pod has it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from moorage.kube.objects import Key
from moorage.model.part_reports import DeviceReport
from moorage.parsing import parse_amount
from moorage.parts.device_parts import class_of

from .objects import AllocatedDevice, DeviceClaim


class DeviceName(NamedTuple):
    driver: str
    pool: str
    name: str


class _Users(NamedTuple):
    """The pods that have the devices of a ResourceClaim, and the claims of the mesh whose slots have them."""

    pods: tuple[str, ...] = ()
    slot_claims: tuple[str, ...] = ()


class DeviceClaims:
    """`mark` gets each device of which more or less is allocated than before, `mark_pod` each pod that has others. `claim_of` returns
    the claim of the mesh that a pod is of; "" if it is of none."""

    def __init__(
        self,
        mark: Callable[[DeviceName], None],
        mark_pod: Callable[[str], None],
        claim_of: Callable[[str], str] = lambda _: "",
    ) -> None:
        self._mark, self._mark_pod, self._claim_of = mark, mark_pod, claim_of
        self._common: dict[Key, _Users] = {}  # of claims that pods of the mesh name
        self._naming: dict[str, set[Key]] = {}  # pod → such claims
        self._pods: dict[Key, str] = {}
        self._claims_of: dict[str, set[Key]] = {}  # pod → claims of which it alone has the devices
        self._claims: dict[Key, tuple[AllocatedDevice, ...]] = {}
        self._nodes: dict[Key, str] = {}  # of claims whose devices one node alone has
        self._holders: dict[DeviceName, set[Key]] = {}

    def put(self, key: Key, claim: DeviceClaim) -> None:
        # With admin access a device is seen, not taken.
        results = tuple(result for result in claim.results if not result.admin_access)
        changed = self._replace(key, results)
        if results and claim.node:
            self._nodes[key] = claim.node
        else:
            self._nodes.pop(key, None)
        common = _Users(claim.pods, claim.slot_claims) if results and claim.slot_claims else _Users()
        self._set_common(key, common)
        alone = claim.pods[0] if len(claim.pods) == 1 and results else ""
        self._reserve(key, self._holder(key) if common.slot_claims else alone, changed)

    def _set_common(self, key: Key, users: _Users) -> None:
        for uid in self._common.pop(key, _Users()).pods:
            self._naming[uid].discard(key)
            if not self._naming[uid]:
                del self._naming[uid]
        if users.slot_claims:
            self._common[key] = users
            for uid in users.pods:
                self._naming.setdefault(uid, set()).add(key)

    def _holder(self, key: Key) -> str:
        """Returns the pod that is told to have what several pods have together: one of a claim whose slots name it."""
        users = self._common[key]
        return min((uid for uid in users.pods if self._claim_of(uid) in users.slot_claims), default="")

    def pod_changed(self, uid: str) -> None:
        """Takes over that a pod is there, or is not any more."""
        for key in sorted(self._naming.get(uid, ())):
            self._reserve(key, self._holder(key), False)

    def drop(self, key: Key) -> None:
        self._set_common(key, _Users())
        changed = self._replace(key, ())
        self._nodes.pop(key, None)
        self._reserve(key, "", changed)

    def _reserve(self, key: Key, pod: str, changed: bool) -> None:
        before = self._pods.pop(key, "")
        if pod:
            self._pods[key] = pod
        for uid in {before, pod} if before != pod else {pod} if changed else ():
            if not uid:
                continue
            claims = self._claims_of.setdefault(uid, set())
            claims.discard(key)
            if uid == pod:
                claims.add(key)
            if not claims:
                del self._claims_of[uid]
            self._mark_pod(uid)

    def _replace(self, key: Key, results: tuple[AllocatedDevice, ...]) -> bool:
        """Returns whether the claim has other devices than before."""
        before = self._claims.pop(key, ())
        if results:
            self._claims[key] = results
        if before == results:
            return False
        for result in before:
            holders = self._holders.get(_name(result), set())
            holders.discard(key)
            if not holders:
                self._holders.pop(_name(result), None)
        for result in results:
            self._holders.setdefault(_name(result), set()).add(key)
        for name in {_name(result) for result in (*before, *results)}:
            self._mark(name)
        return True

    @property
    def has_any(self) -> bool:
        """Returns whether anything is allocated."""
        return bool(self._claims)

    def has_devices(self, pod: str) -> bool:
        """Returns whether the pod alone has devices."""
        return pod in self._claims_of

    def node_of(self, pod: str) -> str:
        """Returns the node to which the devices of a pod tie it; "" if there is none."""
        return next((self._nodes[key] for key in sorted(self._claims_of.get(pod, ())) if key in self._nodes), "")

    def parts_of(self, pod: str, devices: Iterable[DeviceReport]) -> dict[str, dict[str, str]]:
        """Returns what the pod takes of its node's devices, by id and class. A device that is gone is among them."""
        by_name = {DeviceName(device.driver, device.pool, device.name): device for device in devices}
        total: dict[str, Counter[str]] = {}
        for key in sorted(self._claims_of.get(pod, ())):
            for result in self._claims[key]:
                device = by_name.get(_name(result))
                ident = device.id if device is not None else result.ident
                taken = _taken(device, result) if device is not None else {class_of(result.driver): 1}
                total.setdefault(ident, Counter()).update(taken)
        return {
            ident: {name: str(amount) for name, amount in sorted(of.items())} for ident, of in sorted(total.items())
        }

    def in_use(self, devices: Iterable[DeviceReport]) -> dict[str, dict[str, str]]:
        """Returns what is allocated of devices, by id and class."""
        found: dict[str, dict[str, str]] = {}
        for device in devices:
            total: Counter[str] = Counter()
            for result in self._results(DeviceName(device.driver, device.pool, device.name)):
                total.update(_taken(device, result))
            if device.divisible and device.consumes and total:
                total[class_of(device.driver)] = 1  # it takes of counters once, for all that have it
            if total:
                found[device.id] = {name: str(amount) for name, amount in sorted(total.items())}
        return found

    def _results(self, name: DeviceName) -> Iterator[AllocatedDevice]:
        for key in self._holders.get(name, ()):
            yield from (result for result in self._claims[key] if _name(result) == name)


def _name(result: AllocatedDevice) -> DeviceName:
    return DeviceName(result.driver, result.pool, result.device)


def _taken(device: DeviceReport, result: AllocatedDevice) -> dict[str, int]:
    """Returns what one allocation takes. Of a device that can be divided it takes all of the capacities that it does not say."""
    if not device.divisible:
        return {class_of(device.driver): 1}
    consumed = result.consumed_capacity or {}
    taken: dict[str, int] = {}
    for name, text in device.capacity.items():
        try:
            taken[class_of(name)] = parse_amount("", str(consumed.get(name, text)), True)
        except ValueError:
            continue  # inventory tells of amounts that cannot be read
    if device.consumes:
        taken[class_of(device.driver)] = 1
    return taken
