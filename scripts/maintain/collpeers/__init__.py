"""Measures the engine's collectives beside those of other libraries: docs/peers.md."""
