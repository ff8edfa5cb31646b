"""affinity: decides which apps share their clusters and which must not."""
