"""Agents' users on the broker of a local mesh: only `up` writes its configuration. Commands leave a request in the state
directory and wake `up`; the answer comes once a login has shown that the broker does what was asked."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from moorage.mesh import Mesh
from moorage.model.names import cluster_tokens

from ..exit_codes import DONE, FAILED, Failure
from ..state_dir import StateDirectory, write_private
from .brokers import write_nats_conf
from .credentials import Credentials, new_seed

WAKE = signal.SIGUSR1
#: A revoked agent is cut off within 2 s; a broker that takes longer than this to read its configuration is broken.
_WITHIN = 5.0


class AgentUsers:
    """In the supervisor. `perform` runs something in a child; `pid` is the broker's."""

    def __init__(
        self,
        state: StateDirectory,
        secrets: Credentials,
        listen: str,
        mesh: Mesh,
        pid: Callable[[], int],
        perform: Callable[[str, Callable[[], int | None]], int],
    ) -> None:
        self._state, self._secrets, self._listen = state, secrets, listen
        self._mesh, self._pid, self._perform = mesh, pid, perform

    def answer(self) -> None:
        """Every request that lies there."""
        for request in sorted(self._state.requests.glob("*.json")):
            try:
                said = self._one(json.loads(request.read_bytes()))
            except (Failure, ValueError, KeyError, OSError) as wrong:
                said = {"problem": str(wrong)}
            request.unlink(missing_ok=True)
            write_private(request.with_suffix(".answer"), json.dumps(said))

    def _one(self, request: dict[str, Any]) -> dict[str, Any]:
        verb, cluster = str(request["verb"]), str(request["cluster"])
        agents = self._secrets.agents
        before = agents.get(cluster)
        if verb == "revoke":
            if before is None:
                return {"cluster": cluster, "seed": ""}
            del agents[cluster]
            self._write()
            if self._login(cluster, before, wanted=False) != DONE:
                raise Failure(f"the broker still lets the agent of {cluster} in")
            return {"cluster": cluster, "seed": ""}
        seed = before or new_seed()
        agents[cluster] = seed
        self._write()
        if self._login(cluster, seed, wanted=True) != DONE:
            if before is None:
                del agents[cluster]
                self._write()
            raise Failure(f"the broker does not let the agent of {cluster} in")
        return {"cluster": cluster, "seed": seed}

    def _write(self) -> None:
        self._secrets.save(self._state)
        write_nats_conf(self._state, self._listen, self._secrets, self._mesh)
        pid = self._pid()
        if not pid:
            raise Failure("the broker is being started again; try once more")
        os.kill(pid, signal.SIGHUP)

    def _login(self, cluster: str, seed: str, *, wanted: bool) -> int:
        host, _, port = self._listen.rpartition(":")
        url = f"nats://{'127.0.0.1' if host in ('0.0.0.0', '[::]') else host}:{port}"
        return self._perform("login", lambda: asyncio.run(_until(url, cluster, seed, wanted)))


async def _until(url: str, cluster: str, seed: str, wanted: bool) -> int:
    from nats.aio.client import Client
    from nats.errors import Error

    loop = asyncio.get_running_loop()
    end = loop.time() + _WITHIN
    while loop.time() < end:
        client = Client()
        logged_in = False
        with contextlib.suppress(Error, OSError, TimeoutError):
            async with asyncio.timeout(2):
                await client.connect(
                    url,
                    nkeys_seed_str=seed,
                    allow_reconnect=False,
                    max_reconnect_attempts=0,
                    inbox_prefix=f"_INBOX.agent.{cluster_tokens(cluster)}".encode(),
                    error_cb=_quiet,
                )
                await client.flush(timeout=1)
                logged_in = True
        with contextlib.suppress(Exception):
            await client.close()
        if logged_in is wanted:
            return DONE
        await asyncio.sleep(0.05)
    return FAILED


async def _quiet(_error: Exception) -> None:
    """A refused login is an answer here."""


def ask(state: StateDirectory, verb: str, cluster: str, within: float = 15.0) -> str:
    """From a command: have `up` add or revoke the user of a cluster's agent. Its seed."""
    pid = state.holder()
    if not pid:
        raise Failure(
            f"no mesh runs in {state.root}; for a broker that others run, `moorage bus config` says what to add"
        )
    state.requests.mkdir(exist_ok=True, mode=0o700)
    request = state.requests / f"{os.getpid()}-{time.monotonic_ns()}.json"
    answered = request.with_suffix(".answer")
    write_private(request, json.dumps({"verb": verb, "cluster": cluster}))
    try:
        os.kill(pid, WAKE)
        end = time.monotonic() + within
        while not answered.exists():
            if time.monotonic() > end:
                raise Failure(f"`moorage up` (process {pid}) did not answer within {within:g} s; see {state.logs}")
            time.sleep(0.02)
        said = json.loads(answered.read_bytes())
    finally:
        for path in (request, answered):
            _forget(path)
    if problem := said.get("problem"):
        raise Failure(f"{verb} the agent of {cluster}: {problem}")
    return str(said["seed"])


def _forget(path: Path) -> None:
    path.unlink(missing_ok=True)
