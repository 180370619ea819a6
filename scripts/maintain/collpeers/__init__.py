"""Measures the engine's collectives beside other libraries' collectives: docs/peers.md."""
