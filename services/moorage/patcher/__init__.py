"""Turns decisions into the final objects of each cluster, hands them out to agents, and collects what became of them."""
