"""hpa: decides by what nodes can give, and writes the same into manifests."""
