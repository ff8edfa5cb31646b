"""The inside of machines: trees of parts as columns, and the ways in which they meet a request."""

from .candidates import Candidate, Pattern, Round, candidate_rounds, candidates, candidates_in_steps
from .class_columns import Inventory
from .forest import SHARES, Forest, Part
from .pod_request import needs_one_zone, pod_request
from .property_table import PropertyTable
from .request import NAMELESS, Group, Request, SameSubtree
from .solver import Budget

__all__ = [
    "NAMELESS",
    "SHARES",
    "Budget",
    "Candidate",
    "Forest",
    "Group",
    "Inventory",
    "Part",
    "Pattern",
    "PropertyTable",
    "Request",
    "Round",
    "SameSubtree",
    "candidate_rounds",
    "candidates",
    "candidates_in_steps",
    "needs_one_zone",
    "pod_request",
]
