"""HTTP, SSE and API shapes: bytes in, decisions and bytes out. No sockets, no clock, no fleet, no proxy."""
