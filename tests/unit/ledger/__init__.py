"""Tests of the folded ledger."""
