"""Exact planning of device placement: groups of operators, ideals, dynamic programming."""
