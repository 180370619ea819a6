"""Names the device on which a PyTorch model computes."""

from __future__ import annotations

import contextlib
import platform
from typing import Any


def device_name(torch: Any, device: Any) -> str:
    """Returns the model of a GPU, or of this host's processor."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:  # noqa: PTH123
        for line in lines:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
