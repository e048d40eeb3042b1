"""Piper's problem: exact search over chains of downsets, and what its authors published."""
