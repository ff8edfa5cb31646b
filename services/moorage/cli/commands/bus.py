"""`moorage bus`: configures an external NATS and Redis: users with least privilege, and streams."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path

from cyclopts import App

from moorage.mesh.discovery import installed

from ..exit_codes import DONE, USAGE, Failure
from ..output import StateDir
from ..state_dir import write_private
from ..terminal import note, out

app = App(name="bus", help="Configure an external NATS and Redis: users, permissions, streams.")

_CONF = """\
# Configuration of a NATS server for a mesh on several machines. `moorage bus config` writes this file once and never
# overwrites it, so it may be edited. users.conf beside it is rewritten whenever that command runs.

listen: "0.0.0.0:4222"
http: "127.0.0.1:8222"

# Records and commits are larger than the default of 1 MB.
max_payload: 8388608

# Half-open connections are detected within seconds; agents at remote sites may set longer intervals of their own.
ping_interval: "2s"
ping_max: 2
write_deadline: "5s"

jetstream {
  store_dir: "%s"
  # Acknowledged writes survive a power failure. With three replicas the default interval is enough.
  sync_interval: always
}

include "users.conf"

# For a cluster, use the same file on three machines with `server_name` and
#   cluster { name: moorage, listen: "0.0.0.0:6222", routes: ["nats://a:6222", "nats://b:6222", "nats://c:6222"] }
# and TLS on all connections between machines:
#   tls { cert_file: "/etc/nats/tls.crt", key_file: "/etc/nats/tls.key", ca_file: "/etc/nats/ca.crt" }
"""


@app.command
def config(directory: Path, /, *clusters: str, redis: str = "redis:6379", store: str = "/var/lib/moorage/nats") -> int:
    """Write configuration and keys into one directory per user.

    Each user's directory has only what that user needs: nats/nats.conf and nats/users.conf for the broker, redis/redis.conf
    for Redis, nats.nk and redis.url for every worker, also token for the gateway, and nats.nk for every agent. Existing
    files are kept, so the command can be repeated when permissions change or clusters join. Then reload the broker with
    `nats-server --signal reload`; users that are no longer listed are disconnected.

    Parameters
    ----------
    directory
        Target directory; created if needed.
    clusters
        PROVIDER/NAME of each cluster whose agent may connect, PROVIDER/NAME/NODE of each node. What holds slots of Machines in a
        cluster uses the agent's user, unless machines:PROVIDER/NAME gives it one of its own.
    redis
        HOST:PORT of Redis as workers reach it.
    store
        Directory in which the broker stores its streams.
    """
    import json

    from moorage.mesh import ADMIN
    from moorage.mesh.permissions import agent_user, for_agent, for_user, machines_of
    from moorage.model.names import is_name

    from ..up.brokers import redis_users
    from ..up.credentials import new_seed, public_key

    mesh = installed()
    for cluster in clusters:
        kind, _, place = cluster.rpartition(":")
        most = 1 if kind == "machines" else 2
        if kind not in ("", "machines") or not 1 <= place.count("/") <= most or not all(map(is_name, place.split("/"))):
            raise Failure(f"{cluster!r} is not a cluster name; use PROVIDER/NAME, or PROVIDER/NAME/NODE", USAGE)
    try:
        users = []
        for kind in mesh.users:
            seed = _read_or_create(directory / kind / "nats.nk", new_seed)
            users.append({"nkey": public_key(seed), "permissions": for_user(mesh, kind)})
        for cluster in clusters:
            seed = _read_or_create(directory / agent_user(cluster) / "nats.nk", new_seed)
            rights = for_agent(mesh, cluster, machines=machines_of(cluster) not in clusters)
            users.append({"nkey": public_key(seed), "permissions": rights})
        text = f"authorization: {json.dumps({'users': users}, indent=1)}\n"
        _read_or_create(directory / "nats" / "nats.conf", lambda: _CONF % store)
        write_private(directory / "nats" / "users.conf", text)
        passwords = {
            user: _read_or_create(directory / "redis" / f"{user}.password", lambda: secrets.token_urlsafe(24))
            for user in ("default", "inventory", "reader")
        }
        conf = ["port 6379", "protected-mode no", 'save ""', "appendonly no", "dir /tmp", *redis_users(passwords)]
        write_private(directory / "redis" / "redis.conf", "\n".join(conf) + "\n")
        for kind in mesh.users:
            user = "default" if kind == ADMIN else "inventory" if mesh.spec(kind).writes_redis else "reader"
            write_private(directory / kind / "redis.url", f"redis://{user}:{passwords[user]}@{redis}/0\n")
        token = _read_or_create(directory / "gateway" / "token", lambda: secrets.token_hex(32))
        write_private(directory / "placement" / "token", token.strip() + "\n")  # the same token is valid at both
    except OSError as error:
        raise Failure(f"cannot write {error.filename}: {error.strerror}") from error
    note(f"{len(users)} users; the gateway's token is in {directory / 'gateway' / 'token'}")
    out(str(directory))
    return DONE


def _read_or_create(file: Path, make: Callable[[], str]) -> str:
    """Returns the content of the file, which is written first if it does not exist."""
    try:
        return file.read_text().strip()
    except FileNotFoundError:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        content = make()
        write_private(file, content if content.endswith("\n") else content + "\n")
        return content


@app.command
def provision(*, state: StateDir = None) -> int:
    """Create the streams and buckets that the workers need.

    Existing streams stay. Log in as an administrator.
    """
    import asyncio

    from moorage.bus import Bus, BusError, NoAnswer

    from ..state_dir import StateDirectory, state_dir
    from .run import settings_for

    settings = settings_for("admin", StateDirectory(state_dir(state)))

    async def work() -> None:
        bus = await Bus.connect(settings, worker="admin", timeout=30)
        try:
            await bus.provision(installed().stores.values())
        finally:
            await bus.close()

    try:
        asyncio.run(work())
    except (NoAnswer, BusError) as error:
        raise Failure(f"{settings.nats_url}: {error}") from error
    out("provisioned")
    return DONE
