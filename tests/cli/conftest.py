"""Some commands talk to a router, on the loop that it runs on."""

from scripted.fixtures import gateway, pytest_asyncio_loop_factories, sidecar

__all__ = ["gateway", "pytest_asyncio_loop_factories", "sidecar"]
