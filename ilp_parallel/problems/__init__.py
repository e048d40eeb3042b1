"""Abstract problems: instance, solution and evaluation of each family; no solver code."""
