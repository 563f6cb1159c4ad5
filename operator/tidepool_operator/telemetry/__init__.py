"""Figures from outside: Prometheus and the gateways' load streams. Reads only, decides nothing, writes nothing."""
