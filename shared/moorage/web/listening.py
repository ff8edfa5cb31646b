"""Opens the sockets of HTTP servers."""

from __future__ import annotations

import socket


def listener_of(address: str) -> socket.socket:
    """Returns a socket that is bound to `HOST:PORT`; a port alone is one of this machine."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind((host, int(port)))
    return sock
