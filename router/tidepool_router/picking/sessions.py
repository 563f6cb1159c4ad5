"""Where the turns of a session went: the next one finds there also the answer, which no prompt has shown yet."""

from collections import OrderedDict
from typing import Final

from tidepool_router.facts import RequestFacts
from tidepool_router.picking.policy import Matches

_MOST_SESSIONS: Final = 65_536


class Sessions:
    """The last request of each session: its pod's slot, bytes of its prompt, and of prompt and answer together."""

    def __init__(self) -> None:
        self._last: OrderedDict[str, tuple[int, int, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._last)

    def sent(self, facts: RequestFacts, slot: int, output_bytes: int) -> None:
        """A request of a session goes to a pod; so many bytes of answer are expected."""
        if facts.session is None:
            return
        self._last[facts.session] = slot, facts.prompt_bytes, facts.prompt_bytes + output_bytes
        self._last.move_to_end(facts.session)
        if len(self._last) > _MOST_SESSIONS:
            self._last.popitem(last=False)

    def extend(self, facts: RequestFacts, cached: Matches) -> Matches:
        """The matches, with the session's own pod taken to hold the last answer too.

        That holds when its prompt is found there; of prompts too short for any match the session is believed.
        """
        last = self._last.get(facts.session) if facts.session is not None else None
        if last is None:
            return cached
        slot, prompt_bytes, whole_bytes = last
        found = cached.get(slot, 0)
        if facts.prefix and 2 * found < prompt_bytes:
            return cached
        return {**cached, slot: max(found, min(whole_bytes, facts.prompt_bytes - 1))}
