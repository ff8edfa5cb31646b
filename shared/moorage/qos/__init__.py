"""Decides what containers of a node get: hints and their merge, CPUs, memory, roles and pools, admission. Pure; the same for
node agents and simulated nodes."""
