"""Runs of AgentWorkflows: `core` decides (PURE), the modules beside it do its I/O. Nothing here is imported by a
router that has no workflows."""
