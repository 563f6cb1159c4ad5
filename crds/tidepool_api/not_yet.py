"""Fields that the resources have and no part serves yet: refused at apply and by the operator, never ignored.

Take an entry out in the change that builds its part; rule, message and reference follow.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Use:
    """What counts as using a field: the same condition in CEL (on {value}) and in Python (on the plain value)."""

    cel: str
    holds: Callable[[Any], bool]


ANY: Final = Use("true", lambda _: True)
NOT_EMPTY: Final = Use("size({value}) > 0", lambda value: isinstance(value, Sequence | Mapping) and len(value) > 0)
ABOVE_ONE: Final = Use("{value} > 1", lambda value: isinstance(value, int) and value > 1)


@dataclass(frozen=True, slots=True)
class NotYet:
    """One field (`path`, below spec): what counts as its use, what to do, what it will be, the message's start."""

    path: str
    use: Use
    remedy: str
    planned: str
    what: str = "is"

    @property
    def message(self) -> str:
        """What the user reads after the field's name."""
        return f"{self.what} not built yet; {self.remedy} (planned: {self.planned})"

    def cel(self) -> str:
        """True where the spec does not use the field."""
        names = self.path.split(".")
        steps = [".".join(["self", *names[:depth]]) for depth in range(1, len(names) + 1)]
        guards = [f"has({step})" for step in steps]
        used = self.use.cel.format(value=steps[-1])
        condition = guards if used == "true" else [*guards, f"({used})"]
        return f"!({' && '.join(condition)})"

    def validation(self) -> dict[str, Any]:
        """The entry of the spec's x-kubernetes-validations."""
        return {
            "rule": self.cel(),
            "message": self.message,
            "fieldPath": f".{self.path}",
            "reason": "FieldValueForbidden",
        }

    def used_in(self, spec: Mapping[str, Any]) -> bool:
        """Whether a spec, as plain data, uses the field."""
        value: Any = spec
        for name in self.path.split("."):
            if not isinstance(value, Mapping) or value.get(name) is None:
                return False
            value = value[name]
        return self.use.holds(value)


MODELPOOL_NOT_YET: Final[tuple[NotYet, ...]] = ()
