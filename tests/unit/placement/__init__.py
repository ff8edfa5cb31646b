"""Tests of the operations of the Placement interface."""
