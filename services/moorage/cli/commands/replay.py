"""`moorage replay`: decides again from the record of a decision. Exits with 1 if the result differs."""

from __future__ import annotations

from typing import Any

from ..exit_codes import DONE, FAILED
from ..gateway_client import Client, path
from ..output import Format, StateDir, show
from ..table import table
from ..terminal import counted, note, out
from .completion import DecisionId


def replay(decision: DecisionId, /, *, output: Format = "table", state: StateDir = None) -> int:
    """Decide again from the record of a decision, and compare.

    The choice of clusters and the assignment to nodes are computed again from the answers of the controllers and the free
    capacity as they were then, whatever changed since. Exits with 1 if something differs, and says what.
    """
    found: dict[str, Any] = Client.find(state).get(path("decisions", decision, "replay"))
    code = DONE if found["same"] else FAILED
    if output in ("json", "yaml"):
        show(found, output)
        return code
    if output == "name":
        out(f"decision/{found['decision']}")
        return code
    for reason in found["unsure"]:
        note(f"not exact: {reason}")
    if found["same"]:
        out(f"{found['decision']} of {found['group']}, revision {found['revision']}: the same decision")
        return code
    rows = [[each["what"], each["recorded"], each["computed"]] for each in found["differences"]]
    out(table(["WHAT", "RECORDED", "COMPUTED"], rows))
    note(f"{found['decision']} of {found['group']}, revision {found['revision']}: {counted(len(rows), 'difference')}")
    return code
