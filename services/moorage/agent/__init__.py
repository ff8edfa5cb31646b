"""The agent of one real cluster: reports its nodes and pods, applies decided objects, and confirms their state.
It dials out, to the mesh and to its API server, and nothing dials in."""
