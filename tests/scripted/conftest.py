"""The doubles are tested on the loop that their users run on."""

from scripted.fixtures import pytest_asyncio_loop_factories

__all__ = ["pytest_asyncio_loop_factories"]
