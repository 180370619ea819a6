"""Measures how often a gate is wrong, on real pairs: docs/gate.md."""
