"""`tidepool`, also `kubectl tidepool`: what people ask of a cluster, by kubectl.

No Kubernetes client may enter: access, contexts and credentials are kubectl's. What decides what is shown is pure
(explain, fleet, redact, validate); `kubectl` and the commands act. Heavy imports
wait for the command that needs them.
"""
