"""How a worker finds its bus and its Redis."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple


def setting(name: str, default: str = "") -> str:
    """From the environment, else from the file that NAME_FILE names: what stands in a file shows in no list of processes."""
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
