"""Named heuristics from the literature, each as near to its source as one degree per plan allows.

Every module says at its top which algorithm of which source it is and where it departs. All of
them choose from the layer tables that the exact methods use, and what they return is priced by the
same evaluation, so that a difference in value is a difference between algorithms.
"""
