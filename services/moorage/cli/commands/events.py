"""`moorage events` and `moorage subjects`."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import Parameter

from ..event_summaries import summary
from ..exit_codes import DONE
from ..gateway_client import Client
from ..output import Format, StateDir, show
from ..table import Table, table
from ..terminal import as_yaml, out


def events(
    *,
    follow: Annotated[bool, Parameter(name=["--follow", "-f"], negative="")] = False,
    subject: str = "moorage.events.>",
    limit: int | None = None,
    output: Format = "table",
    state: StateDir = None,
) -> int:
    """Show events.

    Parameters
    ----------
    follow
        Print new events until Ctrl-C.
    subject
        Subject filter with NATS wildcards. Rejected messages are on moorage.rejected.>.
    limit
        Past events to show (100; 10 with -f; 0 with -f -o json).
    """
    client = Client.find(state)
    if not follow:
        items = _past(client, subject, 100 if limit is None else limit)
        if output in ("json", "yaml"):
            return show({"items": items}, output)
        if output == "name":
            out("\n".join(e["id"] for e in items))
        else:
            out(table(["TIME", "SUBJECT", "ID", "SUMMARY"], [_row(e) for e in items]))
        return DONE
    tabular = output in ("table", "wide")
    before = limit if limit is not None else 10 if tabular else 0
    rows = _Rows(output)
    shown: set[str] | None = None
    for event in client.events(subject, until=None):
        if shown is None:  # Subscribed. Reading the past only now may repeat an event, but cannot miss one.
            past = _past(client, subject, before) if before > 0 else []
            shown = {past_event["id"] for past_event in past}
            if tabular:
                out("\n".join(rows.lines(past)))
            for past_event in past if not tabular else ():
                _print(past_event, output)
        if event is not None and event["id"] not in shown:
            _print(event, output) if not tabular else out("\n".join(rows.lines([event])))
    return DONE


def _past(client: Client, subject: str, limit: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.get("/v1/events", subject=subject, follow="false", limit=str(limit))["items"]
    return found


def _row(event: dict[str, Any]) -> list[str]:
    return [
        event["time"][11:23],
        event["subject"].removeprefix("moorage.events.").removeprefix("moorage."),
        event["id"],
        summary(event),
    ]


class _Rows:
    """Formats events as rows of one table, which begins with its heading."""

    def __init__(self, output: str) -> None:
        self._wide = output == "wide"
        # Wide enough for most events, so that those that come later are aligned with the first ones.
        ids = ["ID"] if self._wide else []
        self._table = Table(["TIME", "SUBJECT", *ids, "SUMMARY"], least=[12, 48, *(22 for _ in ids)], stream=True)

    def lines(self, events: list[dict[str, Any]]) -> list[str]:
        rows = [_row(event) for event in events]
        return self._table.lines(rows if self._wide else [(time, subject, text) for time, subject, _, text in rows])


def _print(event: dict[str, Any], output: str) -> None:
    if output == "json":
        import json

        out(json.dumps(event, ensure_ascii=False))  # one per line, so that programs can read a stream
    elif output == "yaml":
        out(as_yaml(event) + "\n---")
    else:
        out(event["id"])


def subjects(*, output: Format = "table") -> int:
    """List all NATS subjects with payloads, publishers and subscribers.

    Needs no running mesh.
    """
    from moorage.mesh.discovery import installed

    items = [
        {
            "subject": row.pattern,
            "payload": row.payload,
            "request": row.request,
            "publish": list(row.publishers),
            "subscribe": list(row.subscribers),
            "about": row.description,
        }
        for row in installed().subjects
    ]
    if output in ("json", "yaml"):
        return show({"items": items}, output)
    if output == "name":
        out("\n".join(row.pattern for row in installed().subjects))
        return DONE
    rows = [
        [r.pattern, r.payload, ",".join(r.publishers), ",".join(r.subscribers), r.description]
        for r in installed().subjects
    ]
    out(table(["SUBJECT", "PAYLOAD", "PUBLISHERS", "SUBSCRIBERS", "DESCRIPTION"], rows))
    return DONE
