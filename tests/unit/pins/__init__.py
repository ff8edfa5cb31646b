"""Tests of claims that are pinned to devices."""
