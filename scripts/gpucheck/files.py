"""Files that are there whole or not at all."""

from __future__ import annotations

import shutil
from pathlib import Path

UNFINISHED = ".new"


def replace_text(file: Path, text: str) -> None:
    """In place of what was there, at once: whatever ends the program, nobody finds half of it. Errors: OSError."""
    new = file.with_name(file.name + UNFINISHED)
    new.write_text(text, encoding="utf-8")
    new.replace(file)


def copy_whole(file: Path, target: Path) -> None:
    """As replace_text(). Errors: OSError."""
    new = target.with_name(target.name + UNFINISHED)
    shutil.copyfile(file, new)
    new.replace(target)
