"""Functions for files that exist completely or not at all."""

from __future__ import annotations

from hvdb.whole_file import copy as copy_whole
from hvdb.whole_file import is_unfinished
from hvdb.whole_file import write_text as replace_text

__all__ = ["copy_whole", "is_unfinished", "replace_text"]
