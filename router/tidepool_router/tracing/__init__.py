"""The life of a request as people see it: spans and access lines, made when it has ended from times already kept.

Nothing that serves requests may depend on what happens here: where it is off there is no object, where it is on a
request costs one, and what cannot be written in time is dropped and counted. context.py, life.py and spans.py are
PURE: no I/O, no clock, no chance. OpenTelemetry enters in otlp.py alone, and only when spans are exported.
"""
