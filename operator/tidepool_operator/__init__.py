"""The operator: makes, heals and scales the pods of ModelPools, judges AgentWorkflows. Nothing of the router."""
