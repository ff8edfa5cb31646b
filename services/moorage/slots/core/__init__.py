"""Decides which nodes hold slots of machines, and which guests get them. Pure."""
