"""Tests of updates in place."""
