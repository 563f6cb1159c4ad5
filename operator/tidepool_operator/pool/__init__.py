"""PURE: from a ModelPool and what is observed of it to a plan. No I/O, no clock, no client library may enter."""
