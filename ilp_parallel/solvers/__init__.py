"""Adapters that run a Program on a solver; the solver itself is imported on first use."""
