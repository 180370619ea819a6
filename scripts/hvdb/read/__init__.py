"""Reads stores and other recorded files, and refuses what breaks their rules."""
