"""Secrets of a local mesh: a NATS key for each kind of worker and agent, the gateway's token, and Redis passwords."""

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
    """Returns the public key of a seed, by which nats.conf names the user."""
    key: bytes = nkeys.from_seed(seed.encode()).public_key
    return key.decode()


class Credentials:
    """The secrets of a state directory. They are created once, so that clients keep working after a restart."""

    def __init__(self, token: str, seeds: dict[str, str], redis: dict[str, str]) -> None:
        self.token = token
        self.seeds = seeds
        self.redis = redis
        self.agents: dict[str, str] = {}  # cluster → its agent's seed; `machines_of` it → that of its machines
        self.nats_port = 0  # stored, because agents on other machines are configured with it

    @classmethod
    def open(cls, state: StateDirectory, kinds: Iterable[str]) -> Credentials:
        """Loads the stored secrets, creates missing ones, and saves them."""
        stored: dict[str, Any] = {}
        try:
            stored = json.loads(state.secrets.read_bytes())
        except FileNotFoundError:
            pass
        except ValueError as error:
            raise Failure(f"cannot read {state.secrets}: {error}; remove it to create new keys") from error
        seeds = dict(stored.get("seeds", {}))
        for kind in kinds:
            seeds.setdefault(kind, new_seed())
        passwords = dict(stored.get("redis", {}))
        for user in ("default", "inventory", "reader"):
            passwords.setdefault(user, secrets.token_urlsafe(24))
        credentials = cls(stored.get("token") or secrets.token_hex(32), seeds, passwords)
        credentials.agents = dict(stored.get("agents", {}))
        credentials.nats_port = int(stored.get("natsPort", 0))
        credentials.save(state)
        return credentials

    def save(self, state: StateDirectory) -> None:
        stored = {
            "token": self.token,
            "seeds": self.seeds,
            "redis": self.redis,
            "agents": self.agents,
            "natsPort": self.nats_port,
        }
        write_private(state.secrets, json.dumps(stored, indent=1))
