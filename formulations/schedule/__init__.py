"""Formulations of the ``schedule`` family as integer programs: modules with ``build``, ``decode``.

The model that is solved in practice has intervals and no rows: see
:mod:`ilp_parallel.solvers.schedule_cpsat`. Those here are for comparison, bounds and long runs.
"""
