"""Names on Kubernetes objects that several packages read or write: labels, annotations, gates and the namespace of what is
installed."""

from __future__ import annotations

#: The label of pods that names their claim, and the scheduling gate of pods that are pinned to slots.
CLAIM = "moorage.dev/claim"
#: The annotation with what the pods of a claim take of parts, by node.
PARTS = "moorage.dev/parts"
#: The annotation of objects that names the decision by which they run.
DECISION = "moorage.dev/decision"
#: The namespace of what is installed in a cluster, and the field manager of who installs it.
NAMESPACE, INSTALLER = "moorage-system", "moorage-join"
