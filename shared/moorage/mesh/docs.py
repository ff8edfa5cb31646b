"""The tables of subjects and stores as a page of the documentation."""

from __future__ import annotations

from .mesh import Mesh
from .stores import Stream

_HEAD = """\
# Subjects

Made from the specs of all workers (`make docs`), as are the permissions of every user; `moorage subjects` prints the table
too. In name tokens each byte outside `[A-Za-z0-9_-]` becomes `=XX`: `v1.0` is `v1=2E0`. Payloads are JSON. *agent* stands
for one user per cluster, who may use only its own `<provider>.<cluster>`.

Documents and commands may not have unknown fields; each is refused with 400 and its path. All may have `id`, `cause` (the
`id` of the message that caused this one) and `traceparent`. Readers of events ignore fields that they do not know. A refusal
on `moorage.intents.*` is `{"accepted": false, "problem": {…}}`, elsewhere `{"problem": {…}}`, with a problem as over REST.

| subject | payload | publishers | subscribers | description |
|---|---|---|---|---|
"""

_STORES = """
## Stores

Who may write and read the key-value buckets and object stores of JetStream; streams are rows above. Agents of clusters and nodes may
use none; what may write may read.

| store | writers | readers |
|---|---|---|
"""


def markdown(mesh: Mesh) -> str:
    lines = []
    for row in mesh.subjects:
        request = " (request)" if row.request else ""
        publishers, subscribers = (
            "everyone" if names == mesh.users else ", ".join(names) for names in (row.publishers, row.subscribers)
        )
        lines.append(
            f"| `{row.pattern}`{request} | {row.payload} | {publishers} | {subscribers} | {row.description} |\n"
        )
    lines.append(_STORES)
    for store in mesh.stores.values():
        if not isinstance(store, Stream):
            writers = [spec.name for spec in mesh.specs if store in spec.owns or store.name in spec.writes]
            readers = [spec.name for spec in mesh.specs if spec.name not in writers and store.name in spec.reads]
            lines.append(f"| `{store.name}` | {', '.join(writers)} | {', '.join(readers)} |\n")
    return _HEAD + "".join(lines)
