"""Errors of telemetry.

OperatorError
└── PrometheusAway             no answer, or one that is none; the message says which and what to look at
"""

from tidepool_operator.errors import OperatorError


class PrometheusAway(OperatorError):
    """Prometheus gave no usable answer to a query."""
