"""What the page shows, as plain JSON from what the operator knows. PURE: no I/O, no clock; `now` is passed in.

No prompt, answer, secret or environment variable may enter a view.
"""
