"""Parts that the tests of hvdb.torch_profile share: a test case with a small network, and readers of a replay."""

from __future__ import annotations

import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import FolderTest

from hvdb.base.errors import HvdbError
from hvdb.torch_profile import Recording, record

try:
    import torch
    from torch import nn
except ImportError:
    torch = nn = None

needs_torch = unittest.skipUnless(torch, "needs PyTorch")


def squares(model: Any, batch: Any) -> Any:
    return model(batch).float().square().mean()


def gradients(file: Path) -> list[tuple[str, int, float]]:
    """Returns name, elements and ready time of each gradient."""
    lines = [line.split() for line in file.read_text(encoding="utf-8").splitlines()]
    return [(words[4], int(words[1]), float(words[3])) for words in lines if words[0] == "gradient"]


def value(file: Path, key: str) -> str:
    return next(x.partition(" ")[2] for x in file.read_text(encoding="utf-8").splitlines() if x.startswith(f"{key} "))


@needs_torch
class TorchTest(FolderTest):
    def setUp(self) -> None:
        super().setUp()
        torch.manual_seed(1)
        self.file = self.folder / "net.replay"
        self.batch = torch.randn(6, 4)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))

    def record(self, model: Any, loss: Callable[[Any, Any], Any] = squares, **more: Any) -> Recording:
        settings = {"batch": self.batch, "steps": 3, "warmup": 1} | more
        return record(model, settings.pop("batch"), loss, self.file, **settings)

    def refused(self, pattern: str, model: Any, loss: Callable[[Any, Any], Any] = squares, **more: Any) -> None:
        """Checks that a recording is refused in one line, writes nothing and leaves no hook."""
        self.file.unlink(missing_ok=True)
        before = self.hooks(model)
        with self.assertRaisesRegex(HvdbError, pattern) as caught:
            self.record(model, loss, **more)
        self.assertNotIn("\n", str(caught.exception))
        self.assertEqual(list(self.folder.iterdir()), [])
        self.assertEqual(self.hooks(model), before)

    @staticmethod
    def hooks(model: Any) -> int:
        """Returns how many hooks parameters and modules have."""
        if not isinstance(model, nn.Module):
            return 0
        found = [parameter._post_accumulate_grad_hooks for parameter in model.parameters()]
        found += [module._forward_pre_hooks for module in model.modules()]
        return sum(map(len, filter(None, found)))
