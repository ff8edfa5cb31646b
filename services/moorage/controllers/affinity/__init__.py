"""The controller `affinity` says which apps run on the same clusters and which on different ones."""
