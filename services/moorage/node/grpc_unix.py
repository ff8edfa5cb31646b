"""Serves and calls gRPC over unix sockets that belong to one user."""

from __future__ import annotations

import os
import socket
import stat
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

import grpc
import grpc.aio

#: The largest message that a kubelet takes from a runtime; nothing larger is decoded on any socket.
MAX_MESSAGE = 16 << 20
#: The longest path of a unix socket.
MAX_PATH = 107
_LIMITS = (("grpc.max_receive_message_length", MAX_MESSAGE), ("grpc.max_send_message_length", MAX_MESSAGE))
_RECONNECT = (
    ("grpc.initial_reconnect_backoff_ms", 50),
    # How long an attempt may take at least: a server that listens and does not serve yet is tried again soon.
    ("grpc.min_reconnect_backoff_ms", 2000),
    ("grpc.max_reconnect_backoff_ms", 500),
)


class SocketRefused(Exception):
    """A socket that must not be used; the text says why."""


def channel(address: str) -> grpc.aio.Channel:
    """Opens a channel to `unix:///path`, `unix:path` or a path. It connects with the first call."""
    # Channels of one process to one address would otherwise share a connection and its back-off.
    options = (*_LIMITS, *_RECONNECT, ("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0))
    return grpc.aio.insecure_channel(f"unix:{socket_path(address)}", options=options)


def socket_path(address: str) -> Path:
    return Path(address.removeprefix("unix:").removeprefix("//")).absolute()


def check_peer(path: Path, owners: frozenset[int]) -> None:
    """Refuses a socket that another user serves or could replace, before anything is sent to it."""
    try:
        found = path.lstat()
    except OSError as error:
        raise SocketRefused(f"{path}: {error.strerror}") from error
    if not stat.S_ISSOCK(found.st_mode):
        raise SocketRefused(f"{path} is no socket")
    if found.st_uid not in owners:
        raise SocketRefused(f"{path} belongs to uid {found.st_uid}; allowed are {_listed(owners)}")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except OSError as error:
            raise SocketRefused(f"{path}: {error.strerror or error}") from error
        if (uid := peer_uid(probe)) not in owners:
            raise SocketRefused(f"{path} is served by uid {uid}; allowed are {_listed(owners)}")


def peer_uid(connection: socket.socket) -> int:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])


def _listed(owners: frozenset[int]) -> str:
    return ", ".join(map(str, sorted(owners)))


def own_users() -> frozenset[int]:
    """Returns root and the user of this process: whose sockets are trusted."""
    return frozenset({0, os.geteuid()})


async def serve(path: Path, handlers: Sequence[grpc.GenericRpcHandler]) -> grpc.aio.Server:
    """Starts a server on a socket that only the user of this process may connect to (mode 0600)."""
    if len(os.fsencode(path)) > MAX_PATH:
        raise SocketRefused(
            f"{path} is longer than {MAX_PATH} bytes, the most that a socket's path may have; use a shorter --root"
        )
    make_private(path.parent)
    server = grpc.aio.server(handlers=handlers, options=(*_LIMITS, ("grpc.so_reuseport", 0)))
    before = os.umask(0o177)
    try:
        server.add_insecure_port(f"unix:{path}")
    except RuntimeError as error:
        raise SocketRefused(f"cannot listen on {path}: {error}") from error
    finally:
        os.umask(before)
    await server.start()
    return server


def make_private(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)


def unary_methods(service: str, methods: Mapping[str, grpc.RpcMethodHandler]) -> grpc.GenericRpcHandler:
    return grpc.method_handlers_generic_handler(service, dict(methods))
