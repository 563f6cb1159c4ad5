"""The operator: makes and heals the pods of ModelPools, scales them, judges AgentWorkflows. Nothing of the router."""
