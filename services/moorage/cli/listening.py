"""`moorage events` and `moorage subjects`: what is said in the mesh, and where."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import Parameter

from .client import Client
from .exits import DONE
from .explaining import summary
from .output import Format, StateDir, show
from .terminal import as_yaml, out, table


def events(
    *,
    follow: Annotated[bool, Parameter(name=["--follow", "-f"], negative="")] = False,
    subject: str = "moorage.events.>",
    limit: int = 100,
    output: Format = "table",
    state: StateDir = None,
) -> int:
    """Show the last events, and with -f those that come.

    Parameters
    ----------
    follow
        Go on until Ctrl-C.
    subject
        Only on these subjects, with NATS wildcards; messages that could not be read are kept on moorage.rejected.>.
    limit
        How many of the past.
    """
    client = Client.find(state)
    if not follow:
        items = client.get("/v1/events", subject=subject, follow="false", limit=str(limit))["items"]
        if output in ("json", "yaml"):
            return show({"items": items}, output)
        if output == "name":
            out("\n".join(e["id"] for e in items))
        else:
            out(table(["TIME", "WHAT", "ID", "SUMMARY"], [_row(e) for e in items]))
        return DONE
    for event in client.events(subject, until=None):
        if event is not None:
            _print(event, output)
    return DONE


def _row(event: dict[str, Any]) -> list[str]:
    return [
        event["time"][11:23],
        event["subject"].removeprefix("moorage.events.").removeprefix("moorage."),
        event["id"],
        summary(event),
    ]


def _print(event: dict[str, Any], output: str) -> None:
    if output == "json":
        import json

        out(json.dumps(event, ensure_ascii=False))  # one per line: to be read by programs as it comes
    elif output == "yaml":
        out(as_yaml(event) + "\n---")
    elif output == "name":
        out(event["id"])
    else:
        moment, what, ident, words = _row(event)
        out(
            f"{moment}  {what}  {words}".rstrip()
            if output == "table"
            else f"{moment}  {what}  {ident}  {words}".rstrip()
        )


def subjects(*, output: Format = "table") -> int:
    """Print the table of subjects: payloads, who may say and who may hear them. Needs no running mesh."""
    from moorage.bus.subjects import TABLE

    items = [
        {
            "subject": row.pattern,
            "payload": row.payload,
            "request": row.request,
            "publish": list(row.says),
            "subscribe": list(row.hears),
            "about": row.about,
        }
        for row in TABLE
    ]
    if output in ("json", "yaml"):
        return show({"items": items}, output)
    if output == "name":
        out("\n".join(row.pattern for row in TABLE))
        return DONE
    rows = [[r.pattern, r.payload, ",".join(r.says), ",".join(r.hears), r.about] for r in TABLE]
    out(table(["SUBJECT", "PAYLOAD", "SAID BY", "HEARD BY", "ABOUT"], rows))
    return DONE
