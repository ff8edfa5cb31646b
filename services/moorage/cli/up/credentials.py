"""What only this machine's user may know: a NATS key per kind of worker, the gateway's token, Redis passwords."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterable
from typing import Any

import nkeys

from ..exit_codes import Failure
from ..state_dir import StateDirectory, write_private


def new_seed() -> str:
    seed: bytes = nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER)
    return seed.decode()


def public_key(seed: str) -> str:
    """The public half, as nats.conf names the user."""
    key: bytes = nkeys.from_seed(seed.encode()).public_key
    return key.decode()


class Credentials:
    """Made once per state directory and kept: a client that has its token goes on after a restart."""

    def __init__(self, token: str, seeds: dict[str, str], redis: dict[str, str]) -> None:
        self.token = token
        self.seeds = seeds
        self.redis = redis
        self.agents: dict[str, str] = {}  # cluster → its agent's seed
        self.nats_port = 0  # kept: agents elsewhere were told

    @classmethod
    def open(cls, state: StateDirectory, kinds: Iterable[str]) -> Credentials:
        """The stored ones, with what a newer version needs added."""
        kept: dict[str, Any] = {}
        try:
            kept = json.loads(state.secrets.read_bytes())
        except FileNotFoundError:
            pass
        except ValueError as wrong:
            raise Failure(f"{state.secrets} is not readable ({wrong}); remove it to have new keys made") from wrong
        seeds = dict(kept.get("seeds", {}))
        for kind in kinds:
            seeds.setdefault(kind, new_seed())
        passwords = dict(kept.get("redis", {}))
        for user in ("default", "inventory", "reader"):
            passwords.setdefault(user, secrets.token_urlsafe(24))
        found = cls(kept.get("token") or secrets.token_urlsafe(32), seeds, passwords)
        found.agents = dict(kept.get("agents", {}))
        found.nats_port = int(kept.get("natsPort", 0))
        found.save(state)
        return found

    def save(self, state: StateDirectory) -> None:
        kept = {
            "token": self.token,
            "seeds": self.seeds,
            "redis": self.redis,
            "agents": self.agents,
            "natsPort": self.nats_port,
        }
        write_private(state.secrets, json.dumps(kept, indent=1))
