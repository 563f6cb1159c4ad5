"""The language of AgentWorkflows, for those who judge them and those who run them.

PURE: no I/O, no clock, nothing is rendered here. Import the modules, not the package: `templates` and what builds
on it bring Jinja along.
"""
