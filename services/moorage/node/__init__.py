"""The node agent gives containers CPUs, memory and NICs by the role of their pod, before they start and while they run,
through plugins, and reports what each zone has left.

It is a worker of its own because it runs on the node, beside the kubelet: what it decides is local, takes milliseconds, and
goes on while the mesh is away.
"""

import os

# gRPC's core reads this when it is loaded; it would log each runtime that goes away, with its own time stamps.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
