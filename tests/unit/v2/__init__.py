"""Tests of the resources of /v2."""
