"""Reads the result store of hvd_bench (results/schema.sql) and turns it into tables, plots and verdicts.

Every function here is pure or says what it reads and writes; `__main__` is the one place that prints and exits.
Units are SI unless a name says otherwise: seconds, bytes, images per second of the whole world.
"""
