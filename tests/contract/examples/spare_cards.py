import numpy as np

from moorage.sdk import allow, controller


@controller("spare-cards", capacity=True)
def spare_cards(ask, fleet):
    """Allows clusters with a fast card of which something is free."""
    spare = np.zeros(fleet.size, bool)
    cards = fleet.parts.classes.get("FPGA")
    if cards is not None:
        rows = cards.with_room(1)
        fast = fleet.parts.traits.where("fast", lambda traits: "FAST" in traits)
        rows = rows[fast[fleet.parts.trait_set[rows]]]
        spare[fleet.cluster[fleet.parts.node[rows]]] = True
    return {app.name: allow(spare) for app in ask.apps}
