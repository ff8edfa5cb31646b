"""labels: decides by where an app is meant to run, named by cluster, provider or label."""
