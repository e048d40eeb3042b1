"""Solving operator-sharding instances: presolve, bounds and searches."""
