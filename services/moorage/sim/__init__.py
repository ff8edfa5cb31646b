"""Simulated clusters that speak exactly the agents' protocol: what the mesh is tried and measured on."""
