"""The operator with days that pass FAST times as fast: run in its pod in place of `tidepool-operator`.

What forecasts measure in time (a bin, an hour's trend, the smoothing of a day, how long losses count, how often a
replica's speed is read) is divided, so that a day of minutes has the shape of a day. Nothing else is changed: the
code that decides, what it reads, and how long pods take to start are the real ones.
"""

import sys

FAST = 5.0


def hurry() -> None:
    """Divide; before the modules that take these figures over are imported."""
    from tidepool_operator.scaling import experts, forecast

    experts.TREND_SECONDS /= FAST  # type: ignore[misc]
    experts.SMOOTHING_SECONDS /= FAST  # type: ignore[misc]
    forecast.MEMORY_SECONDS /= FAST  # type: ignore[misc]
    from tidepool_operator.scaling import record

    record.BIN_SECONDS /= FAST  # type: ignore[misc]
    from tidepool_operator.scaling import ahead

    ahead.SMOOTHING_SECONDS /= FAST  # type: ignore[misc]
    ahead.READING_SECONDS /= FAST  # type: ignore[misc]


if __name__ == "__main__":
    hurry()
    from tidepool_operator.__main__ import main

    sys.exit(main())
