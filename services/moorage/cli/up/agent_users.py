"""Adds and revokes agents' users on the broker of a local mesh. Only `up` writes the broker's configuration: commands leave a
request in the state directory and wake `up`, which answers after a test login has shown that the change took effect."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import Callable
from typing import Any

from moorage.mesh import Mesh
from moorage.mesh.permissions import agent_user, machines_of

from ..exit_codes import DONE, FAILED, Failure
from ..state_dir import StateDirectory, write_private
from .brokers import write_nats_conf
from .credentials import Credentials, new_seed

WAKE = signal.SIGUSR1
#: A revoked agent is disconnected within 2 s; a broker that takes longer than this to reload is broken.
_RELOAD_SECONDS = 5.0


class AgentUsers:
    """Answers requests in the supervisor. `perform` runs a function in a child process; `pid` returns the broker's pid."""

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

    def answer_requests(self) -> None:
        """Answers every request in the directory."""
        for request in sorted(self._state.requests.glob("*.json")):
            try:
                answer = self._answer(json.loads(request.read_bytes()))
            except (Failure, ValueError, KeyError, OSError) as error:
                answer = {"problem": str(error)}
            request.unlink(missing_ok=True)
            write_private(request.with_suffix(".answer"), json.dumps(answer))

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        verb, cluster = str(request["verb"]), str(request["cluster"])
        agents = self._secrets.agents
        before = agents.get(cluster)
        if verb == "revoke":
            if before is None and machines_of(cluster) not in agents:
                return {"cluster": cluster, "seed": ""}
            revoked = {place: agents.pop(place) for place in (cluster, machines_of(cluster)) if place in agents}
            self._reload_broker()
            for place, seed in revoked.items():
                if self._wait_for_login(place, seed, allowed=False) != DONE:
                    raise Failure(f"the broker still accepts the agent of {place}")
            return {"cluster": cluster, "seed": ""}
        seed = before or new_seed()
        agents[cluster] = seed
        self._reload_broker()
        if self._wait_for_login(cluster, seed, allowed=True) != DONE:
            if before is None:
                del agents[cluster]
                self._reload_broker()
            raise Failure(f"the broker does not accept the agent of {cluster}")
        return {"cluster": cluster, "seed": seed}

    def _reload_broker(self) -> None:
        self._secrets.save(self._state)
        write_nats_conf(self._state, self._listen, self._secrets, self._mesh)
        pid = self._pid()
        if not pid:
            raise Failure("the broker is restarting; try again")
        os.kill(pid, signal.SIGHUP)

    def _wait_for_login(self, cluster: str, seed: str, *, allowed: bool) -> int:
        host, _, port = self._listen.rpartition(":")
        url = f"nats://{'127.0.0.1' if host in ('0.0.0.0', '[::]') else host}:{port}"
        return self._perform("login", lambda: asyncio.run(_wait_for_login(url, cluster, seed, allowed)))


async def _wait_for_login(url: str, cluster: str, seed: str, allowed: bool) -> int:
    """Tries to log in until it succeeds or, if not `allowed`, until it fails."""
    from nats.aio.client import Client
    from nats.errors import Error

    loop = asyncio.get_running_loop()
    end = loop.time() + _RELOAD_SECONDS
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
                    inbox_prefix=f"_INBOX.{agent_user(cluster)}".encode(),
                    error_cb=_ignore,
                )
                await client.flush(timeout=1)
                logged_in = True
        with contextlib.suppress(Exception):
            await client.close()
        if logged_in is allowed:
            return DONE
        await asyncio.sleep(0.05)
    return FAILED


async def _ignore(_error: Exception) -> None:
    """Ignores errors, because a refused login is an expected result here."""


def ask(state: StateDirectory, verb: str, cluster: str, within: float = 15.0) -> str:
    """Asks `up` from a command to add or revoke the user of a cluster's agent, and returns the user's seed."""
    pid = state.holder()
    if not pid:
        raise Failure(f"no mesh is running in {state.root}; for an external broker, use `moorage bus config`")
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
        answer = json.loads(answered.read_bytes())
    finally:
        for path in (request, answered):
            path.unlink(missing_ok=True)
    if problem := answer.get("problem"):
        raise Failure(f"cannot {verb} the agent of {cluster}: {problem}")
    return str(answer["seed"])
