import numpy as np

from moorage.sdk import controller, deny


@controller("favoured-parts", policy="optional")
def favoured_parts(ask, fleet):
    """Prefers clusters where each part that a pod asks for by a group could be a new one."""
    parts = fleet.parts
    new = parts.properties.where("new", lambda found: dict(found).get("generation", 0) >= 3)
    answers = {}
    for app in ask.apps:
        favoured = np.ones(fleet.size, bool)
        for group in (group for shape in app.shapes for group in shape.groups):
            for name, amount in group.resources.items():
                having = np.zeros(fleet.size, bool)
                if (found := parts.classes.get(name)) is not None:
                    rows = found.with_room(amount)
                    rows = rows[new[parts.property_set[rows]]]
                    having[fleet.cluster[parts.node[rows]]] = True
                favoured &= having
        answers[app.name] = deny([], levels=[(1.0, favoured)])
    return answers
