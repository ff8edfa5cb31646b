"""Keeps what apps applied to a simulated cluster: the objects of each, in versions, and which app has an object."""

from __future__ import annotations

from typing import Any

from moorage.model.desired_state import DesiredApp
from moorage.model.status import Confirm, ObjectStatus
from moorage.podspec import object_key

from .workloads import Workload

AppKey = tuple[str, str]  # group, app
WorkloadKey = tuple[AppKey, str]


class AppliedApps:
    """The objects of apps. `pending` collects those to be reconciled; the cluster takes them out."""

    __slots__ = ("_failed", "_handed_over", "apps", "notices", "pending", "versions", "wanted_again", "workloads")

    def __init__(self) -> None:
        self.apps: dict[AppKey, list[str]] = {}  # keys of the objects, in order
        self.versions: dict[AppKey, int] = {}
        self.workloads: dict[WorkloadKey, Workload] = {}
        self.pending: dict[WorkloadKey, None] = {}
        self.notices: dict[WorkloadKey, tuple[str, str]] = {}  # what users should know of objects that are not wrong
        #: Apps that got an object back from another: their version is to be applied again.
        self.wanted_again: set[AppKey] = set()
        self._failed: dict[WorkloadKey, str] = {}
        self._handed_over: dict[
            WorkloadKey, WorkloadKey
        ] = {}  # objects that other groups' apps took over → who has them

    def is_handed_over(self, key: WorkloadKey) -> bool:
        """Returns whether an app of another group has the object now."""
        return key in self._handed_over

    def reconcile_all(self) -> None:
        self.pending.update(dict.fromkeys(self.workloads))

    def put(self, key: WorkloadKey, manifest: dict[str, Any]) -> None:
        """Creates or updates an object. Raises `ValueError` if its manifest makes no sense."""
        work = self.workloads.get(key)
        if work is None:
            self.workloads[key] = Workload(manifest, key[1])
        else:
            work.update(manifest)
        self._failed.pop(key, None)
        self.pending[key] = None

    def fail(self, key: WorkloadKey, message: str) -> None:
        """Notes why an object could not be applied."""
        self._failed[key] = message

    def remove(self, key: WorkloadKey) -> Workload | None:
        """Removes an object, and returns its workload, whose pods are to go. One that was taken from another app goes back to it
        with its pods instead."""
        self._handed_over.pop(key, None)
        before = next((former for former, owner in self._handed_over.items() if owner == key), None)
        if before is not None:
            del self._handed_over[before]
            if key in self.workloads:
                self._hand_over(key, before)
                self.wanted_again.add(before[0])
                return None
        self.pending.pop(key, None)
        self._failed.pop(key, None)
        self.notices.pop(key, None)
        return self.workloads.pop(key, None)

    def take_over(self, key: AppKey, app: DesiredApp) -> None:
        """Takes the objects of the app's names from the group that it succeeds."""
        wanted = {object_key(m): str((m.get("metadata") or {}).get("namespace") or "default") for m in app.objects}
        for other, names in self.apps.items():
            for name in names if other[0] == app.succeeds else ():
                work = self.workloads.get((other, name))
                if work is not None and (key, name) not in self.workloads and work.namespace == wanted.get(name):
                    self._hand_over((other, name), (key, name))
                    self._handed_over[other, name] = key, name

    def _hand_over(self, before: WorkloadKey, after: WorkloadKey) -> None:
        """Makes the object that of another app. Its pods stay."""
        work = self.workloads[after] = self.workloads.pop(before)
        self.pending.pop(before, None)
        self._failed.pop(before, None)
        self.pending[after] = None
        for pod in [*work.pods, *work.refused]:
            pod.owner = after

    def refuse(self, app: DesiredApp, message: str) -> Confirm:
        """Returns the confirmation of a version whose objects the API server refuses."""
        names = [object_key(manifest) for manifest in app.objects] or self.apps.get((app.group, app.app), [])
        objects = [ObjectStatus(object=name, state="Failed", message=message) for name in names]
        return Confirm(group=app.group, app=app.app, version=app.version, objects=objects)

    def confirm(self, key: AppKey) -> Confirm:
        """Returns the status of an app, object by object."""
        version = self.versions.get(key, 0)
        if key not in self.apps:
            return Confirm(group=key[0], app=key[1], version=version, removed=True)
        objects = []
        for name in self.apps[key]:
            owned = (key, name)
            while owned in self._handed_over:
                owned = self._handed_over[owned]
            message = self._failed.get(owned)
            if message is not None:
                objects.append(ObjectStatus(object=name, state="Failed", message=message))
            else:
                status = self.workloads[owned].status()
                if notice := self.notices.get(owned):
                    status.code, status.message = notice
                objects.append(status)
        return Confirm(group=key[0], app=key[1], version=version, objects=objects)
