"""Measured runs: reading them, comparing the cost model with them, fitting its rates to them."""
