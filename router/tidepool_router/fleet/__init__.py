"""Endpoints, their load streams and the state of pools; the sidecar's view of its engine.

I/O lives here, and only control traffic: no byte of a request or of an answer may enter.
"""
