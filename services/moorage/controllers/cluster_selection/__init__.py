"""The controller `labels` allows the clusters that placement intents select by name, provider or label."""
