"""Writes the Machines of the mesh into a cluster: each as a Machine of its own, with the Nodes of this cluster and its share of slots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import msgspec
import structlog

from moorage.kube import Api, ApiError, Unreachable
from moorage.machine_groups.cluster import ClusterMachines
from moorage.machine_groups.names import MESH, ORIGIN
from moorage.machine_groups.written import document_of
from moorage.model.machines import MachineDocument

from .requests import collection

log = structlog.get_logger("machines")
_encode = msgspec.json.Encoder().encode
_MERGE = "application/merge-patch+json"


def changes(
    machines: Mapping[str, dict[str, Any]], documents: Mapping[str, MachineDocument]
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Returns the Machines to write, and the names of those to delete. Machines that somebody made here stay as they are."""
    written: dict[str, dict[str, Any]] = {}
    for name, document in documents.items():
        found = machines.get(name)
        if found is not None and not _is_of_mesh(found):
            continue
        wanted = document_of(document.machine)
        wanted["metadata"]["labels"] = {**wanted["metadata"]["labels"], ORIGIN: MESH}
        if found is None or found.get("spec") != wanted["spec"]:
            written[name] = wanted
    gone = [name for name, found in machines.items() if _is_of_mesh(found) and name not in documents]
    return written, gone


def _is_of_mesh(machine: Mapping[str, Any]) -> bool:
    return (machine["metadata"].get("labels") or {}).get(ORIGIN) == MESH


async def write_documents(api: Api, state: ClusterMachines, documents: Mapping[str, MachineDocument]) -> None:
    """Makes the Machines of the mesh in the cluster what they are there. What fails is tried again with the next answer."""
    for name in documents.keys() & state.machines.keys():
        if not _is_of_mesh(state.machines[name]):
            log.warning("a Machine of this name was made here; that of the mesh is not written", name=name)
    written, gone = changes(state.machines, documents)
    for name in (*written, *gone):
        try:
            await _write(api, name, written.get(name), exists=name in state.machines)
        except ApiError as error:  # of this one; others may be written
            log.warning("a Machine of the mesh could not be written", name=name, error=str(error))
        except Unreachable as error:
            log.warning("Machines of the mesh could not be written", error=str(error))
            return


async def _write(api: Api, name: str, machine: dict[str, Any] | None, *, exists: bool) -> None:
    """Makes, changes or removes (None) a Machine."""
    path = collection("Machine")
    if machine is None:
        await api.call("DELETE", f"{path}/{quote(name)}")
    elif exists:
        patch = {"metadata": {"labels": machine["metadata"]["labels"]}, "spec": machine["spec"]}
        await api.call("PATCH", f"{path}/{quote(name)}", body=_encode(patch), content_type=_MERGE)
    else:
        await api.call("POST", path, body=_encode(machine))
