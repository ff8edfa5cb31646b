"""Serves the OpenStack Placement interface over the parts of the fleet and over trees made through it."""
