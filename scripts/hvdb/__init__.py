"""Reads the result store of hvd_bench (results/schema.sql) for tables, plots and verdicts, and runs campaigns.

Every function here is pure or says what it reads and writes. Only hvdb.commands and hvdb.cli print and exit. Units are
SI unless a name says otherwise: seconds, bytes, images per second of the whole world.
"""

__version__ = "0.1.0"  # the same as in CMakeLists.txt
