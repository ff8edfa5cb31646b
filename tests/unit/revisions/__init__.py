"""Tests of revisions that documents are resolved to."""
