"""`/v2`: composite apps, intents and clusters as a tree of resources, and the life cycle of groups. The design's own
prefix (none) leads to the same routes."""
