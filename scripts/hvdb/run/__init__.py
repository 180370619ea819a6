"""Runs the program again: the gate, reruns and reproductions."""
