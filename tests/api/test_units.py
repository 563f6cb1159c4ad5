"""Durations and quantities, as Kubernetes users write them."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from tidepool_api.units import (
    Duration,
    DurationUpToHour,
    Fraction,
    Quantity,
    duration_seconds,
    quantity_value,
)

SECONDS = {"h": 3600, "m": 60, "s": 1, "ms": Decimal("0.001")}
numbers = st.decimals(min_value=0, max_value=99_999, places=3).map(lambda number: format(number.normalize(), "f"))
parts = st.lists(st.tuples(numbers, st.sampled_from(sorted(SECONDS))), min_size=1, max_size=3)
words = st.text(alphabet="0123456789.hms uKMGikE-+\n", max_size=12)


@given(parts)
def test_duration_is_the_sum_of_its_parts(written: list[tuple[str, str]]) -> None:
    text = "".join(number + unit for number, unit in written)

    expected = sum(Decimal(number) * SECONDS[unit] for number, unit in written)
    assert duration_seconds(text) == pytest.approx(float(expected))


@given(numbers, st.sampled_from(["", "m", "k", "M", "G", "Ki", "Mi", "Gi", "Ti"]))
def test_quantity_grows_with_its_unit(number: str, unit: str) -> None:
    factor = {"": 1, "m": Decimal("0.001"), "k": 10**3, "M": 10**6, "G": 10**9}.get(unit)
    if factor is None:
        factor = 2 ** (10 * ("KMGT".index(unit[0]) + 1))

    assert quantity_value(number + unit) == Decimal(number) * factor


@pytest.mark.parametrize(
    ("kind", "parse"), [(Duration, duration_seconds), (Quantity, quantity_value)], ids=["duration", "quantity"]
)
@given(text=words)
def test_what_a_model_takes_can_be_read(kind: type[str], parse: object, text: str) -> None:
    try:
        TypeAdapter(kind).validate_python(text)
    except ValidationError:
        with pytest.raises(ValueError, match="write it like"):
            parse(text)  # type: ignore[operator]
    else:
        assert parse(text) >= 0  # type: ignore[operator]


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (Duration, ["0s", "1500ms", "1h30m", "0.5s", "1h1h"], ["", "5", "s", "-1s", "1 s", "1d", "1e3s", "1s\n"]),
        (DurationUpToHour, ["60m", "3600s", "1h"], ["61m", "3600001ms", "1h1ms"]),
        (Quantity, ["0", "0.9", "500m", "64Mi", "1E"], ["", "-1", "64mi", "64MB", "1.", ".5", "1e3", "1 Gi"]),
        (Fraction, ["1", "0.01", "1m", "999m", "1.0"], ["0", "0.0", "1.01", "1001m", "80%", "1k"]),
    ],
)
def test_shapes(kind: type[str], good: list[str], bad: list[str]) -> None:
    adapter = TypeAdapter(kind)

    assert [adapter.validate_python(text) for text in good] == good
    for text in bad:
        with pytest.raises(ValidationError):
            adapter.validate_python(text)
