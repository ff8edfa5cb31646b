"""Gives out the slots of machine groups: it lays out reservations on nodes, and grants their slots to guests.

It is a worker of its own, one for the fleet, because clusters have no rights on the decision log: a guest that somebody makes
in a cluster and an application that the mesh places get their slots through the same log, so never the same one.
"""
