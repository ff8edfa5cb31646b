"""The controller `topology`: whether the parts of nodes serve the pods of an app."""
