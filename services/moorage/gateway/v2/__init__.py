"""`/v2`, the EMCO interface: composite apps, intents and clusters as a tree of resources, and the life cycle of groups. The
same routes exist without the prefix, as EMCO spells them."""
