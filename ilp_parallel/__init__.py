"""Proves optimal parallel training plans for large models with integer programming."""

__version__ = "0.1.0"
