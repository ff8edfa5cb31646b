"""Decides what a request to the Placement interface answers and changes, without I/O."""
