"""Addresses and keys with which a worker reaches NATS and Redis."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple


def setting(name: str, default: str = "") -> str:
    """Returns the environment variable, or else the content of the file that NAME_FILE names. Secrets belong into files,
    since other processes may read the environment."""
    if (value := os.environ.get(name)) is not None:
        return value
    file = os.environ.get(f"{name}_FILE")
    if not file:
        return default
    try:
        return Path(file).read_text().strip()
    except OSError as wrong:
        raise SystemExit(f"{name}_FILE names {file}, which cannot be read: {wrong.strerror}") from wrong


class Settings(NamedTuple):
    nats_url: str
    nats_seed: str = ""
    redis_url: str = ""

    @classmethod
    def from_env(cls) -> Settings:
        return cls(
            os.environ.get("MOORAGE_NATS_URL", "nats://127.0.0.1:4222"),
            setting("MOORAGE_NATS_SEED"),
            setting("MOORAGE_REDIS_URL", "redis://127.0.0.1:6379/0"),
        )
