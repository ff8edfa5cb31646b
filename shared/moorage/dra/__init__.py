"""Devices as clusters report them: slices, allocated claims and classes of `resource.k8s.io`. Agents read it from API servers, the
simulator from fleet files."""
