"""Tables, pages and figures of what `read` and `judge` return."""

import os
from pathlib import Path

try:
    Path.home()
except RuntimeError:
    # Without HOME, a container's unknown user has no home, and importing matplotlib would fail. It makes a temporary
    # folder for its fonts where the named one cannot be used.
    os.environ.setdefault("MPLCONFIGDIR", os.devnull)
