"""The agent of one real cluster: says what its nodes and pods are, makes it run what was decided, says what became of it.
It dials out, to the mesh and to its API server, and nothing dials in."""
