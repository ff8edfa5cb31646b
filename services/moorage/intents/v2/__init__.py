"""Stores the resources of `/v2`, accepted in any spelling that clients use, and composes them into Applications."""
