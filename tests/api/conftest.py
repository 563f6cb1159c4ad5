"""A real API server with the resources, for the tests that ask it."""

from fakes.controlplane import control_plane, kubectl

__all__ = ["control_plane", "kubectl"]
