"""Named heuristics against proven optima, over jobs and benchmark sets."""
