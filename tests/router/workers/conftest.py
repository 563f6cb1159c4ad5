"""Workers are programs of their own; the tests talk to them on the loop of all of the router's tests."""

from scripted.fixtures import pytest_asyncio_loop_factories

__all__ = ["pytest_asyncio_loop_factories"]
