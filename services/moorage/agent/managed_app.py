"""One app of a group in this cluster: its record, the version it is brought to, and its objects."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

from moorage.kube import ApiError, apply_order
from moorage.kube.apply import is_container_kind
from moorage.model.desired_state import DesiredApp

from .app_records import AppRecord
from .context import ClusterContext
from .core.owned_objects import Owner, Ref, label_of
from .fenced_configmap import StaleTerm
from .managed_object import ManagedObject, ObjectWriter

_T = TypeVar("_T")


class Overtaken(Exception):
    """A newer version was decided; nothing more of this one is applied."""


class ManagedApp:
    def __init__(self, cluster: ClusterContext, record: AppRecord) -> None:
        self.cluster, self.record = cluster, record
        self.group, self.app = record.content.group, record.content.app
        self.label = label_of(self.group, self.app)
        self.writer = ObjectWriter(cluster, Owner(self.label, f"{self.group} {self.app}"))
        self.desired: DesiredApp | None = None
        self.objects: dict[Ref, ManagedObject] = {}

    @property
    def has_refusals(self) -> bool:
        return any(managed.refused for managed in self.objects.values())

    def check_current(self, desired: DesiredApp) -> None:
        if self.desired is not desired:
            raise Overtaken
        if not self.cluster.term.is_valid:
            raise StaleTerm("the lease was not renewed in time")

    async def store_record(self) -> None:
        if self.record.behind:
            await self.cluster.records.store(self.record)

    def write_limit(self, ref: Ref) -> asyncio.Semaphore | asyncio.Lock:
        return self.cluster.namespace_writes if ref.kind == "Namespace" else self.cluster.writes

    async def apply(self, desired: DesiredApp, managed: ManagedObject, *, fresh: bool = False) -> None:
        """Applies one object and keeps the refusal of the API server. `fresh`: the app never had this object."""
        async with self.write_limit(managed.ref):
            self.check_current(desired)
            try:
                await self.writer.apply(managed, lambda: self.check_current(desired), fresh=fresh)
                managed.accepted()
            except ApiError as error:
                managed.refuse(error)

    async def remove(self, desired: DesiredApp, refs: list[Ref]) -> None:
        """Removes objects in the reverse of the order they are created in. Kinds that contain or define others go last, once
        all others are gone."""
        for is_gate in (False, True):
            stage = [ref for ref in refs if is_container_kind(ref.kind) is is_gate]
            for order in sorted({apply_order(ref.kind) for ref in stage}, reverse=True):
                together = [ref for ref in stage if apply_order(ref.kind) == order]
                await run_all(self.writer.remove(ref, lambda: self.check_current(desired)) for ref in together)


async def run_all(coroutines: Iterable[Coroutine[Any, Any, _T]]) -> list[_T]:
    """Runs all to their end, then raises the first failure or returns the results."""
    results: list[_T] = []
    for outcome in await asyncio.gather(*coroutines, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome
        results.append(outcome)
    return results
