"""Formulations of operator sharding."""
