"""An agent forgets apps some time after their removal was confirmed."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from moorage.agent import desired_state
from moorage.agent.core.owned_objects import label_of
from moorage.agent.desired_state import REMEMBERED_FOR, DesiredStateClient
from moorage.model.desired_state import DesiredApp, DesiredReply
from moorage.model.status import Confirm

GROUP = "p/shop/v1/default"


class Patcher:
    """Answers requests, and keeps what it was told."""

    def __init__(self) -> None:
        self.apps: list[DesiredApp] = []
        self.have: dict[str, int] = {}
        self.confirmed: list[Confirm] = []

    async def call(self, subject: str, payload: Any, kind: Any, *, timeout: float) -> Any:
        if ".confirm." in subject:
            self.confirmed.append(payload)
            return msgspec.Raw(b"{}")
        self.have = payload.have
        return DesiredReply(apps=[a for a in self.apps if payload.have.get(f"{a.group} {a.app}", 0) < a.version])


class App:
    """Stands in for a reconciler: what is to be removed is removed at once."""

    def __init__(self, _cluster: object, record: Any, confirm: Any) -> None:
        self.label = label_of(record.content.group, record.content.app)
        self.removed = False
        self._confirm = confirm

    async def run(self) -> None:
        await asyncio.Event().wait()

    def set_desired(self, desired: DesiredApp) -> None:
        self.removed = desired.remove
        confirm = Confirm(group=desired.group, app=desired.app, version=desired.version, removed=desired.remove)
        self._confirm(confirm)


@pytest.mark.looptime
async def test_removed_apps_and_their_tasks_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desired_state, "AppReconciler", App)
    patcher, apps = Patcher(), dict[str, Any]()
    tasks: list[asyncio.Task[Any]] = []

    def spawn(coro: Any) -> asyncio.Task[Any]:
        tasks.append(asyncio.ensure_future(coro))
        return tasks[-1]

    client = DesiredStateClient(patcher, "lab/a", None, apps, spawn, lambda: 2.0, lambda _app, _pins: None)  # type: ignore[arg-type]
    spawn(client.run_requests())
    spawn(client.run_confirms())
    own = len(tasks)
    patcher.apps = [DesiredApp(group=GROUP, app=f"a{i}", version=i + 1, objects=[]) for i in range(20)]
    await asyncio.sleep(3)
    assert len(apps) == len(patcher.confirmed) == 20
    patcher.apps = [DesiredApp(group=GROUP, app=f"a{i}", version=i + 100, objects=[], remove=i > 0) for i in range(20)]
    await asyncio.sleep(REMEMBERED_FOR - 10)
    assert len(apps) == 20 and len(patcher.have) == 20, "the patcher may name them until their claims are released"
    patcher.apps = patcher.apps[:1]
    await asyncio.sleep(30)
    assert list(apps) == [label_of(GROUP, "a0")]
    assert patcher.have == {f"{GROUP} a0": 100}
    assert sum(not task.done() for task in tasks) == own + 1
    patcher.apps.append(DesiredApp(group=GROUP, app="a1", version=7, objects=[]))
    await asyncio.sleep(3)
    assert not apps[label_of(GROUP, "a1")].removed
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
