"""Inventory: the only writer of the fleet. It takes the reports of every cluster, keeps the rows in memory and writes snapshots
and changes to Redis, where mergers and controllers follow them. One inventory is active, others stand by."""
