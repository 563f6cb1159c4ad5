"""Routers over sockets, and a real PostgreSQL."""

from router.workflow.conftest import postgres
from scripted.fixtures import gateway

__all__ = ["gateway", "postgres"]
