"""Property tests draw the same examples in every run, and take the time they need on a busy machine."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "tidepool", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("tidepool")
