"""Durations and quantities as Kubernetes users write them."""

import re
from decimal import Decimal
from typing import Annotated, Final

from pydantic import AfterValidator, Field

_DURATION_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
DURATION_PATTERN: Final = r"^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$"
_DURATION_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)")
QUANTITY_PATTERN: Final = r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$"
_QUANTITY: Final = re.compile(r"^([0-9]+(?:\.[0-9]+)?)(m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)?$")
_QUANTITY_UNITS: Final[dict[str | None, Decimal]] = {
    None: Decimal(1),
    "m": Decimal("0.001"),
    **{unit: Decimal(1000**power) for power, unit in enumerate("kMGTPE", start=1)},
    **{f"{unit}i": Decimal(1024**power) for power, unit in enumerate("KMGTPE", start=1)},
}


def duration_seconds(text: str) -> float:
    """Seconds of a duration such as `1500ms`, `10m` or `1h30m`.

    Raises ValueError, with an example, for anything else.
    """
    if re.fullmatch(DURATION_PATTERN, text) is None:
        raise ValueError(f"{text!r} is not a duration; write it like 1500ms, 60s or 1h30m")
    return sum(float(number) * _DURATION_UNITS[unit] for number, unit in _DURATION_PART.findall(text))


def quantity_value(text: str) -> Decimal:
    """Plain value of a Kubernetes quantity such as `64Mi`, `0.9` or `500m`.

    Raises ValueError, with an example, for anything else.
    """
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a quantity; write it like 0.9, 500m or 64Mi")
    return Decimal(match[1]) * _QUANTITY_UNITS[match[2]]


def _checked_duration(text: str) -> str:
    duration_seconds(text)
    return text


def _checked_quantity(text: str) -> str:
    quantity_value(text)
    return text


Duration = Annotated[str, Field(max_length=32, pattern=DURATION_PATTERN), AfterValidator(_checked_duration)]
Quantity = Annotated[str, Field(max_length=32, pattern=QUANTITY_PATTERN), AfterValidator(_checked_quantity)]
