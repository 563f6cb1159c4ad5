"""How many examples a property test draws where the usual number does not fit."""

from typing import Any, Final

from hypothesis import settings

USUAL_EXAMPLES: Final = 30


def examples(number: int, **more: Any) -> settings:
    """So many by default, and as many more under another profile as that has more than usual.

    Few where one example costs much; many where what is looked for is rare.
    """
    return settings(max_examples=number * settings.default.max_examples // USUAL_EXAMPLES, **more)
