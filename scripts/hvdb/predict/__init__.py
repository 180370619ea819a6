"""Predicts the time of a step and its efficiency on worlds that were not measured. Uses `read` and `judge`."""
