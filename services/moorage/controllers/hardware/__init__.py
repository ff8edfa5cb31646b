"""The controller `hpa` allows the clusters whose nodes have what pods need, and writes the needs into manifests."""
