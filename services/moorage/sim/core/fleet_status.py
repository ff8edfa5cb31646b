"""Describes the state of a simulated fleet: health, and the texts about clusters that another simulator has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from moorage.model.problems import Problem

from .simulator import Simulator

_MAX_NAMES = 5


def refused_clusters(simulator: Simulator) -> dict[str, str]:
    """Returns the clusters that the inventory refuses, with its reasons."""
    return {ident: agent.reason for ident, agent in simulator.agents.items() if agent.state == "refused"}


def fleet_health(simulator: Simulator) -> dict[str, Any]:
    """Returns the health of the worker: it is not healthy while clusters are refused."""
    refused = refused_clusters(simulator)
    missing = [f"{ident} is refused: another simulator has it" for ident in list(refused)[:_MAX_NAMES]]
    return {"ok": not refused, "missing": missing, "clusters": len(simulator.agents)}


def cluster_count(clusters: int) -> str:
    return f"{clusters} cluster" + ("" if clusters == 1 else "s")


def name_list(clusters: Iterable[str]) -> str:
    """Returns the first names, and the number of further ones."""
    names = sorted(clusters)
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(names[:_MAX_NAMES]) + more


def taken_text(refused: Mapping[str, str]) -> str:
    """Returns the owner of the refused clusters, with the inventory's reason for the first: the others have the same."""
    pronoun = "it" if len(refused) == 1 else "them"
    return f"{name_list(refused)}: another simulator or agent has {pronoun} ({refused[min(refused)]})"


def taken_problem(refused: Mapping[str, str], consequence: str) -> Problem:
    detail = f"{taken_text(refused)}; {consequence}"
    return Problem(title="Refused", status=409, code="ClusterTaken", detail=detail)
