"""Simulates clusters whose agents speak the real protocol, for trying out and measuring the mesh."""
