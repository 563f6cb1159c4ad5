"""Several gateway processes on one port, and the parent that starts, watches and speaks for them.

`pages` and `demand` are PURE. Nothing here sees a request: workers share the traffic port by the kernel's means.
"""
