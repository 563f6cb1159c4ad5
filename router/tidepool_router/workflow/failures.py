"""How one try of a step fails."""

import asyncio
from typing import Final

from tidepool_router.errors import RouterError

# Why a try is cut whose own time is over; every other one is cut because nobody waits for it any more.
TIMED_OUT: Final = "timed out"


def timed_out(cut: asyncio.CancelledError) -> bool:
    """Whether who was called took too long, and has failed."""
    return cut.args == (TIMED_OUT,)


class StepFailed(RouterError):
    """`again`: another try may succeed. The tokens are what the try has used all the same."""

    def __init__(self, message: str, *, again: bool, prompt_tokens: int = 0, output_tokens: int = 0) -> None:
        super().__init__(message)
        self.again = again
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens


class StepErrored(StepFailed):
    """A template or an answer cannot be used; it would be the same again."""

    def __init__(self, message: str) -> None:
        super().__init__(message, again=False)
