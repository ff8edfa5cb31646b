"""The controller `affinity`: rules about apps on the same clusters or on different ones."""
