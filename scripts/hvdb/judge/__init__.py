"""Computes intervals, efficiencies and verdicts from what was read. No output."""
