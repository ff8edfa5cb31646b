"""Names the kinds of standalone intents that are built in. It imports nothing, for the command line."""

INTENT_KINDS = ("HpaIntent", "TopologyIntent", "PlacementIntent", "AffinityIntent")
