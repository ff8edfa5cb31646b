"""Holds the slots of a cluster's Machines with real Pods, and lets guests take them. It is near the API server, whose hooks must be
answered when the mesh cannot be reached, and writes Nodes, which no agent may."""
