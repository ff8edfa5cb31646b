"""Tells whether the typed properties of a part meet a selector; see `moorage.classes`."""

from moorage.classes import Properties, meets

__all__ = ["Properties", "meets"]
