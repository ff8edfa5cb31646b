"""Tests of devices that several nodes of a cluster reach."""
