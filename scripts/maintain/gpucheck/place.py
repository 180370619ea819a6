"""Finds the programs: in a bundle, or in a build folder of the repository."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from . import ctest

PRESETS = ("cuda", "release")


@dataclass(frozen=True)
class Place:
    """root: the folder of the bundle or of the repository."""

    root: Path
    programs: Path
    build: Path | None  # None: a bundle

    def program(self, name: str) -> str | None:
        """Returns the path of a program; None if it was not built."""
        path = self.programs / name
        return str(path) if path.exists() else None

    def gpu_tests(self) -> list[ctest.GpuTest]:
        """Returns the tests of label gpu. Errors: as ctest.of_build()."""
        if self.build is not None:
            return ctest.of_build(self.build)
        return ctest.read(self.root / "tests" / "tests.json", self.root)

    def peers(self) -> Path:
        """Returns the folder of the scripts for the comparison."""
        return self.root / "scripts" / "maintain" / "peers"


def find_place(root: Path) -> Place | None:
    """Returns the place of the programs; None if nothing has been built."""
    if (root / "bin" / "hvd_bench").exists():
        return Place(root, root / "bin", None)
    for preset in PRESETS:
        build = root / "build" / preset
        if (build / "bin" / "train_step_bench").exists():  # scripts/quickstart builds only hvd_bench
            return Place(root, build / "bin", build)
    return None
