"""Predicts runs that were not measured, and measures them afterwards."""
