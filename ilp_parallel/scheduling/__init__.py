"""Pipeline schedules without a solver: placements, heuristics, bounds, pictures and files."""
