"""`moorage bus`: what a broker and a Redis that others run need: users with the least rights, and the streams."""

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

app = App(name="bus", help="A NATS and a Redis that you run yourself: users and rights, streams.")

_CONF = """\
# A NATS server for a mesh on more than one machine. Made once by `moorage bus config` and never written again: change it.
# users.conf beside it is made anew whenever that command runs.

listen: "0.0.0.0:4222"
http: "127.0.0.1:8222"

# Records and commits are larger than the default of 1 MB.
max_payload: 8388608

# Half-open links are noticed within seconds; agents at remote sites may use longer ones of their own.
ping_interval: "2s"
ping_max: 2
write_deadline: "5s"

jetstream {
  store_dir: "%s"
  # What was acknowledged survives a power failure. On a cluster with three replicas the default is enough.
  sync_interval: always
}

include "users.conf"

# A cluster: the same file on three machines with `server_name` and
#   cluster { name: moorage, listen: "0.0.0.0:6222", routes: ["nats://a:6222", "nats://b:6222", "nats://c:6222"] }
# and TLS on everything that leaves the machine:
#   tls { cert_file: "/etc/nats/tls.crt", key_file: "/etc/nats/tls.key", ca_file: "/etc/nats/ca.crt" }
"""


@app.command
def config(directory: Path, /, *clusters: str, redis: str = "redis:6379", store: str = "/var/lib/moorage/nats") -> int:
    """Write configuration and keys: a directory per user, each with what this user needs and nothing else.

    nats/nats.conf and nats/users.conf are the broker's, redis/redis.conf is Redis'. Every worker has nats.nk and redis.url,
    the gateway also its token, and every agent nats.nk. What is there is kept, so that it can be run again when rights
    change or clusters join; afterwards `nats-server --signal reload` cuts off whoever is no longer named.

    Parameters
    ----------
    directory
        Where to; made if it is not there.
    clusters
        PROVIDER/NAME of every cluster whose agent may speak.
    redis
        HOST:PORT at which workers reach Redis.
    store
        Where the broker keeps its streams.
    """
    import json

    from moorage.mesh import ADMIN
    from moorage.mesh.permissions import for_agent, for_user
    from moorage.model.names import cluster_tokens, is_name

    from ..up.brokers import redis_users
    from ..up.credentials import new_seed, public_key

    mesh = installed()
    for cluster in clusters:
        if cluster.count("/") != 1 or not all(is_name(part) for part in cluster.split("/")):
            raise Failure(f"{cluster!r} is not PROVIDER/NAME", USAGE)
    try:
        users = []
        for kind in mesh.users:
            seed = _kept(directory / kind / "nats.nk", new_seed)
            users.append({"nkey": public_key(seed), "permissions": for_user(mesh, kind)})
        for cluster in clusters:
            seed = _kept(directory / f"agent.{cluster_tokens(cluster)}" / "nats.nk", new_seed)
            users.append({"nkey": public_key(seed), "permissions": for_agent(mesh, cluster)})
        text = f"authorization: {json.dumps({'users': users}, indent=1)}\n"
        _kept(directory / "nats" / "nats.conf", lambda: _CONF % store)
        write_private(directory / "nats" / "users.conf", text)
        words = {
            user: _kept(directory / "redis" / f"{user}.password", lambda: secrets.token_urlsafe(24))
            for user in ("default", "inventory", "reader")
        }
        conf = ["port 6379", "protected-mode no", 'save ""', "appendonly no", "dir /tmp", *redis_users(words)]
        write_private(directory / "redis" / "redis.conf", "\n".join(conf) + "\n")
        for kind in mesh.users:
            user = "default" if kind == ADMIN else "inventory" if mesh.spec(kind).writes_redis else "reader"
            write_private(directory / kind / "redis.url", f"redis://{user}:{words[user]}@{redis}/0\n")
        _kept(directory / "gateway" / "token", lambda: secrets.token_urlsafe(32))
    except OSError as wrong:
        raise Failure(f"cannot write {wrong.filename}: {wrong.strerror}") from wrong
    note(f"{len(users)} users; the gateway's token is in {directory / 'gateway' / 'token'}")
    out(str(directory))
    return DONE


def _kept(file: Path, make: Callable[[], str]) -> str:
    """What stands in the file; made where there is none."""
    try:
        return file.read_text().strip()
    except FileNotFoundError:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        made = make()
        write_private(file, made if made.endswith("\n") else made + "\n")
        return made


@app.command
def provision(*, state: StateDir = None) -> int:
    """Make the streams and buckets that the workers need, as the administrator; what is there stays."""
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
    except (NoAnswer, BusError) as wrong:
        raise Failure(f"{settings.nats_url}: {wrong}") from wrong
    out("provisioned")
    return DONE
