"""Reading -> decision, for one pool at a time. No I/O, no clock: `now` and every figure are passed in."""
