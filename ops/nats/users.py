"""Writes users.conf (nkeys and permissions, made from the table of subjects) and a seed file per user into a directory.

    python ops/nats/users.py DIRECTORY [PROVIDER/CLUSTER ...]

Seeds that are there already are kept, so that it can be run again when permissions change or clusters join; afterwards
`nats-server --signal reload` cuts off whoever is no longer named, and disturbs nobody else."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec
import nkeys

from moorage.bus.permissions import KINDS, for_agent, for_user
from moorage.model.names import cluster_tokens


def public_key(seeds: Path, name: str) -> str:
    """The user's public key; its seed is made where there is none."""
    file = seeds / f"{name}.nk"
    if not file.exists():
        seed = nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER)
        handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as out:
            out.write(seed)
    public: bytes = nkeys.from_seed(file.read_bytes().strip()).public_key
    return public.decode()


def main(directory: str, clusters: list[str]) -> None:
    seeds = Path(directory)
    seeds.mkdir(mode=0o700, parents=True, exist_ok=True)
    users = [{"nkey": public_key(seeds, kind), "permissions": for_user(kind)} for kind in KINDS]
    for cluster in clusters:
        name = "agent." + cluster_tokens(cluster)
        users.append({"nkey": public_key(seeds, name), "permissions": for_agent(cluster)})
    text = msgspec.json.format(msgspec.json.encode({"users": users}), indent=2).decode()
    (seeds / "users.conf").write_text(f"authorization: {text}\n")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2:])
