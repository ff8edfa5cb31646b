"""Parts of HTTP servers that several workers use: who calls, where they listen, and where requests for the placement interface go."""

from .audit_writer import AuditWriter
from .forwarding import LEADER, Leader, callers, forward_to_leader, make_session, placement_leader
from .listening import listener_of
from .tokens import TokenReader, digest_of, token_of

__all__ = [
    "LEADER",
    "AuditWriter",
    "Leader",
    "TokenReader",
    "callers",
    "digest_of",
    "forward_to_leader",
    "listener_of",
    "make_session",
    "placement_leader",
    "token_of",
]
