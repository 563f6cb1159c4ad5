"""Durations and quantities as Kubernetes users write them."""

import re
from decimal import Decimal
from typing import Annotated, Final

from pydantic import AfterValidator, Field

from tidepool_api.kube import Rule, patterned

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


def _is_duration(text: str) -> bool:
    return re.fullmatch(DURATION_PATTERN, text) is not None


def _is_quantity(text: str) -> bool:
    return _QUANTITY.fullmatch(text) is not None


DURATION_RULE: Final = Rule(
    f"self.matches(r'{DURATION_PATTERN}')",
    "is not a duration; write it like 1500ms, 60s or 1h30m",
    holds=_is_duration,
)
QUANTITY_RULE: Final = Rule(
    f"self.matches(r'{QUANTITY_PATTERN}')",
    "is not a quantity; write it like 0.9, 500m or 64Mi",
    holds=_is_quantity,
)
FRACTION_RULE: Final = Rule(
    f"self.matches(r'{QUANTITY_PATTERN}') && quantity(self).compareTo(quantity('0')) > 0"
    " && quantity(self).compareTo(quantity('1')) <= 0",
    'is not above 0 and up to 1; write a share such as "0.8"',
    holds=lambda text: _is_quantity(text) and 0 < quantity_value(text) <= 1,
)


def _up_to(longest: str) -> Rule:
    # The digits are bounded first, since a long number would overflow CEL's duration.
    return Rule(
        f"!self.matches(r'{DURATION_PATTERN}') || (self.matches(r'^([0-9.]{{1,9}}[a-z]+){{1,3}}$')"
        f" && duration(self) <= duration('{longest}'))",
        f"is longer than {longest}; shorten it",
        holds=lambda text: duration_seconds(text) <= duration_seconds(longest),
    )


UP_TO_TEN_SECONDS: Final = _up_to("10s")
UP_TO_HOUR: Final = _up_to("1h")
UP_TO_DAY: Final = _up_to("24h")
UP_TO_WEEK: Final = _up_to("168h")
# Longest duration to the rule that says so.
LONGEST: Final = {"10s": UP_TO_TEN_SECONDS, "1h": UP_TO_HOUR, "24h": UP_TO_DAY, "168h": UP_TO_WEEK}
_DURATION: Final = AfterValidator(DURATION_RULE.check)

Duration = Annotated[
    str,
    Field(max_length=32, json_schema_extra=patterned(DURATION_PATTERN, DURATION_RULE)),
    _DURATION,
]
DurationUpToTenSeconds = Annotated[
    str,
    Field(max_length=32, json_schema_extra=patterned(DURATION_PATTERN, DURATION_RULE, UP_TO_TEN_SECONDS)),
    _DURATION,
    AfterValidator(UP_TO_TEN_SECONDS.check),
]
DurationUpToHour = Annotated[
    str,
    Field(max_length=32, json_schema_extra=patterned(DURATION_PATTERN, DURATION_RULE, UP_TO_HOUR)),
    _DURATION,
    AfterValidator(UP_TO_HOUR.check),
]
DurationUpToDay = Annotated[
    str,
    Field(max_length=32, json_schema_extra=patterned(DURATION_PATTERN, DURATION_RULE, UP_TO_DAY)),
    _DURATION,
    AfterValidator(UP_TO_DAY.check),
]
DurationUpToWeek = Annotated[
    str,
    Field(max_length=32, json_schema_extra=patterned(DURATION_PATTERN, DURATION_RULE, UP_TO_WEEK)),
    _DURATION,
    AfterValidator(UP_TO_WEEK.check),
]
Quantity = Annotated[
    str,
    Field(max_length=32, json_schema_extra=patterned(QUANTITY_PATTERN, QUANTITY_RULE)),
    AfterValidator(QUANTITY_RULE.check),
]
Fraction = Annotated[
    str,
    Field(max_length=32, json_schema_extra=patterned(QUANTITY_PATTERN, FRACTION_RULE)),
    AfterValidator(FRACTION_RULE.check),
]
