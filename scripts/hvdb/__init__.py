"""Reads the result store of hvd_bench (results/schema.sql) for tables, plots and verdicts, and runs campaigns.

Every function here is pure or says what it reads and writes. Only hvdb.commands and hvdb.cli print and exit. Times are
in seconds, sizes in bytes and rates in images per second of the whole world, unless a name says otherwise.
"""

__version__ = "0.2.0.dev0"  # also read by CMakeLists.txt and pyproject.toml
