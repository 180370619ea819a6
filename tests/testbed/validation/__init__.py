"""Predicts runs that were not measured, and measures them afterwards; looks back at published points."""
