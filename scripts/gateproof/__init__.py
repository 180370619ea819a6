"""How often a gate is wrong, measured on real pairs: docs/gate.md."""
