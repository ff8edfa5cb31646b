"""`moorage run`: runs one worker, or a file with controllers, against a running mesh."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from moorage.mesh.discovery import installed

from ..exit_codes import UNREACHABLE, USAGE, Failure
from ..output import StateDir
from ..state_dir import StateDirectory, state_dir
from ..workers import run_worker

if TYPE_CHECKING:
    from moorage.bus import Settings


Worker = Annotated[str, Parameter(help=f"{', '.join(installed().workers)}, or a Python file.")]


def run(worker: Worker, /, *, state: StateDir = None) -> int:
    """Run one worker, or a Python file with controllers, until Ctrl-C.

    Connects to MOORAGE_NATS_URL with MOORAGE_NATS_SEED and to MOORAGE_REDIS_URL, or to the mesh on this machine if they are not
    set.
    """
    if worker not in installed().workers and not os.path.isfile(worker):
        raise Failure(f"{worker!r} is neither a worker ({', '.join(installed().workers)}) nor a Python file", USAGE)
    return run_worker(worker, settings_for(worker, StateDirectory(state_dir(state))))


def settings_for(worker: str, state: StateDirectory) -> Settings:
    from moorage.bus import Settings

    if os.environ.get("MOORAGE_NATS_URL"):
        return Settings.from_env()
    endpoint = state.read_endpoint()
    if endpoint is None:
        raise Failure(
            f"no mesh is running here: {state.endpoint} does not exist; start one with `moorage up`, or set "
            "MOORAGE_NATS_URL, MOORAGE_NATS_SEED and MOORAGE_REDIS_URL",
            UNREACHABLE,
        )
    if worker in ("gateway", "placement"):
        os.environ.setdefault("MOORAGE_TOKEN", endpoint["token"])
    return Settings(endpoint["nats"], _seed(worker, state, endpoint), endpoint["redis"])


def _seed(worker: str, state: StateDirectory, endpoint: dict[str, Any]) -> str:
    """Returns the key of the worker's own user, or of the unprivileged controller user for files, so that `run` never gives
    more permissions than `up`."""
    if worker not in installed().workers and worker != "admin":
        return str(endpoint.get("controllerSeed", ""))
    try:
        return str(json.loads(state.secrets.read_bytes())["seeds"][worker])
    except (OSError, ValueError, KeyError):
        return str(endpoint.get("natsSeed", ""))
