"""Formulations of the pipeline family, one file per formulation."""
