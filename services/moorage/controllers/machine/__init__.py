"""The controller `machine` answers for applications whose pods run in slots of machine groups: it allows the clusters with enough
free slots, and labels their pods so that each cluster knows them as guests.

It is a controller of its own because slots belong to no hardware of a node: they are what reservations hold.
"""
