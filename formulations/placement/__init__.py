"""Formulations of device placement."""
