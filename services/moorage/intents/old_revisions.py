"""Bounds how many old revisions of a group are kept. A rollback needs them, and so does whoever carries out a decision that was made
from one."""

from __future__ import annotations

import os

import msgspec
import structlog

from moorage.bus import Bucket, BusError, NoAnswer
from moorage.model.names import group_tokens
from moorage.model.problems import Problem, not_found
from moorage.model.status import GroupStatus

log = structlog.get_logger("intents")

#: The setting for how many are kept, and how many that is without it.
SETTING, KEPT = "MOORAGE_REVISIONS_KEPT", 100
#: The oldest are removed together, so that most updates need not look.
EVERY = 10

_status = msgspec.json.Decoder(GroupStatus).decode


def revisions_kept() -> int:
    """Returns how many revisions are kept before the one that runs. A setting that is no number above 0 is told, and the default
    holds."""
    text = os.environ.get(SETTING, "")
    if not text:
        return KEPT
    if text.isdecimal() and int(text) > 0:
        return int(text)
    log.warning("a setting is ignored: it is no number above 0", setting=SETTING, value=text)
    return KEPT


class OldRevisions:
    def __init__(self, revisions: Bucket, statuses: Bucket) -> None:
        self._revisions, self._statuses = revisions, statuses
        self.kept = revisions_kept()

    def is_due(self, revision: int) -> bool:
        """Returns whether a group that is at this revision now may have too many."""
        return revision > self.kept and revision % EVERY == 0

    async def trim(self, group: str) -> None:
        """Removes revisions from long before the one that runs. What fails is done after one of the next updates."""
        try:
            await self._trim(group)
        except (NoAnswer, BusError) as error:
            log.debug("old revisions are removed later", group=group, error=str(error))

    async def _trim(self, group: str) -> None:
        tokens = group_tokens(group)
        entry = await self._statuses.get(tokens)
        status = _status(entry.value) if entry is not None else None
        # Until it ran in full it may lose its room, and the one that ran before it, however old, runs again.
        if status is None or not status.reached:
            return
        oldest = status.revision - self.kept  # newer ones may wait
        numbers, upto = await self._numbers(tokens), await self._revisions.last()
        for number in numbers:
            if number < oldest:
                await self._revisions.purge(f"{tokens}.{number}", upto)

    async def _numbers(self, tokens: str) -> list[int]:
        """Returns which old revisions of a group there are. Beside them the bucket has the traces of deleted groups."""
        names = [key.rpartition(".")[2] for key in await self._revisions.keys(f"{tokens}.*")]
        return [int(name) for name in names if name.isdecimal()]

    async def problem(self, group: str, revision: int) -> Problem:
        """Returns why there is no such revision of a group."""
        problem = not_found(f"revision {revision} of {group}")
        oldest = min(await self._numbers(group_tokens(group)), default=0)
        if 0 < revision < oldest:
            problem.detail = (
                f"revision {revision} of {group} is not kept any more, the oldest is {oldest}: of those before the one that runs "
                f"{self.kept} are kept ({SETTING} of the intent stores)"
            )
        return problem
