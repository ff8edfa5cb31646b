"""`moorage placement`: queries the Placement interface."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cyclopts import App

from ..exit_codes import DONE
from ..gateway_client import Client
from ..output import Format, StateDir, show
from ..placement_text import reason_lines
from ..table import table
from ..terminal import counted, out

app = App(name="placement", help="Query the Placement interface.")


@app.command
def candidates(query: str, /, *, explain: bool = False, output: Format = "table", state: StateDir = None) -> int:
    """List the allocation candidates of a query in the newest version of the Placement interface.

    Each line is a provider of a candidate, the amounts that it gives, and the groups that it meets.

    Parameters
    ----------
    query
        Parameters as in a URL, for example 'resources=VCPU:1&limit=5'.
    explain
        Show how many providers each group has left after each of its conditions, and if there are no candidates, why.
    """
    client = Client.find(state)
    if explain:
        found = client.get(f"/v1/placement/explain?{query}")
        if output in ("json", "yaml"):
            return show(found, output)
        out(counted(found["candidates"], "candidate"))
        out(
            table(
                ["GROUP", "ASKS", "OFFERED BY", "WITH TRAITS", "IN AGGREGATES", "IN TREE", "WITH ROOM"], _funnel(found)
            )
        )
        for line in reason_lines(found["reasons"]):
            out(line)
        return DONE
    version = {"OpenStack-API-Version": "placement latest"}
    found = client.call("GET", f"/placement/allocation_candidates?{query}", headers=version)
    if output in ("json", "yaml"):
        return show(found, output)
    out(table(["CANDIDATE", "PROVIDER", "GIVES", "GROUPS"], _rows(found["allocation_requests"])))
    return DONE


def _funnel(found: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    steps = ("providers", "withTraits", "withAggregates", "inTree", "withRoom")
    for group in found["groups"]:
        yield group["group"] or "-", _amounts(group.get("resources", {})), *(group.get(step, 0) for step in steps)


def _rows(candidates: list[Mapping[str, Any]]) -> Iterator[tuple[Any, ...]]:
    for number, candidate in enumerate(candidates, 1):
        allocations = candidate["allocations"]
        if isinstance(allocations, list):  # before 1.12
            allocations = {one["resource_provider"]["uuid"]: one for one in allocations}
        suffixes: dict[str, list[str]] = {provider: [] for provider in allocations}
        for suffix, providers in candidate.get("mappings", {}).items():  # since 1.34
            for provider in providers:
                suffixes.setdefault(provider, []).append(suffix or "-")
        for provider, names in suffixes.items():
            given = allocations.get(provider, {}).get("resources", {})
            yield number, provider, _amounts(given) or "-", ",".join(names)


def _amounts(resources: Mapping[str, int]) -> str:
    return ",".join(f"{name}:{amount}" for name, amount in resources.items())
