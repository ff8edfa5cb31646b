"""How a worker finds its bus and its Redis."""

from __future__ import annotations

import os
from typing import NamedTuple


class Settings(NamedTuple):
    nats_url: str
    nats_seed: str = ""
    redis_url: str = ""

    @classmethod
    def from_env(cls) -> Settings:
        return cls(
            os.environ.get("MOORAGE_NATS_URL", "nats://127.0.0.1:4222"),
            os.environ.get("MOORAGE_NATS_SEED", ""),
            os.environ.get("MOORAGE_REDIS_URL", "redis://127.0.0.1:6379/0"),
        )
