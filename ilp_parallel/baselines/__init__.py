"""Exact dynamic programming and named heuristics; no solver, no formulation."""
