"""What a run does next.

PURE: no I/O, no clock, no luck; `now` is in seconds of one clock that never goes back.
"""
