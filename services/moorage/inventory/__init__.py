"""Inventory: the only writer of what the fleet is. It takes reports from the sources of every cluster, keeps the rows in
memory and writes snapshots and changes to Redis, where everyone who decides follows them. One is active, others stand by."""
