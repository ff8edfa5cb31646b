"""Makes decisions of one group's record, from the newest state each time, and holds their room."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from moorage.bus import new_id
from moorage.fit import PackingSolutions
from moorage.fit.hard_packing import solve
from moorage.model.claims import Decision
from moorage.model.groups import Revision
from moorage.telemetry import tracing

from .core.propose import ProposalRefused, TriedChoices, propose
from .core.recording import Recording
from .core.responses import ControllerResults, refresh

if TYPE_CHECKING:
    from .decider import Decider

#: Seconds that the solver may take for the hard packings of one proposal.
SOLVE_SECONDS = 0.5


class Proposer:
    """Makes decisions of one record from the newest state, and holds their room."""

    def __init__(
        self,
        decider: Decider,
        record: Revision,
        results: ControllerResults,
        based_on: int,
        *,
        is_simulated: bool = False,
    ) -> None:
        self._decider, self._record, self.results, self._based_on = decider, record, results, based_on
        self._is_simulated = is_simulated
        self._traceparent = tracing.traceparent()
        self._solutions = PackingSolutions(decider.choose_nodes)
        self.decision: Decision | None = None  # the last proposal, if it was not refused
        self.refusal = ProposalRefused([])
        self._tried: TriedChoices | None = None  # by the last proposal, if it is to be recorded
        self.recording: Recording | None = None  # what the decision was made from

    async def propose_solved(self, until: float) -> Decision | None:
        """Proposes like `propose`, once packings that are too hard for it are solved off the event loop."""
        return self._hold(await self.compute_solved(until))

    def propose(self) -> Decision | None:
        """Returns a decision whose room is held, or None after setting `refusal`."""
        return self._hold(self._compute())

    async def compute_solved(self, until: float) -> Decision | ProposalRefused:
        """Computes a decision without holding its room, again once hard packings are solved off the event loop."""
        loop = asyncio.get_running_loop()
        proposal = self._compute()
        while self._solutions.unsolved and (left := until - loop.time()) > 0:
            unsolved = dict(self._solutions.unsolved)
            self._solutions.add(await asyncio.to_thread(solve, unsolved, min(left, SOLVE_SECONDS)))
            proposal = self._compute()
        return proposal

    def _compute(self) -> Decision | ProposalRefused:
        decider = self._decider
        self.results = refresh(self.results, decider.fleet)
        self._tried = None if self._is_simulated or not decider.recorder.affordable else TriedChoices()
        began = time.perf_counter()
        proposal = propose(
            self._record,
            self.results,
            decider.fleet,
            decider.ledger,
            decider.name_order,
            new_id(),
            self._solutions,
            self._tried,
        )
        if not self._is_simulated:
            decider.metrics.proposed(time.perf_counter() - began)
        return proposal

    def _hold(self, proposal: Decision | ProposalRefused) -> Decision | None:
        if isinstance(proposal, ProposalRefused):
            self.decision, self.refusal = None, proposal
            return None
        self.recording = self._recording_of(proposal)
        proposal.traceparent, proposal.based_on = self._traceparent, self._based_on
        self._decider.capacity.hold(proposal)
        self.decision = proposal
        return proposal

    def _recording_of(self, proposal: Decision) -> Recording | None:
        """Records what the proposal was made from, if there is time. Nothing may have changed since."""
        if self._tried is None:
            return None
        decider, began = self._decider, time.thread_time()
        state = decider.fleet, decider.ledger
        taken = Recording.take(proposal, self._record, self.results, self._tried, *state, self._solutions)
        decider.recorder.spent(time.thread_time() - began)
        return taken
