"""The controller `resource-class`: which clusters have devices for an app, and which of these are the best choice."""
