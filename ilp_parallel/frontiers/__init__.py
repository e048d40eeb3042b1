"""Objectives beside the step time: numbers of nodes, cost, memory; frontiers and sensitivity."""
