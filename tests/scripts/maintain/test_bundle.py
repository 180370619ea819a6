"""Tests scripts/maintain/bundle with an Open MPI made for the test. tests/bundle runs the bundle of the real one."""

from __future__ import annotations

import os
import shutil
import tarfile
import unittest

from harness import SCRIPTS, FolderTest, executable, execute


@unittest.skipUnless(shutil.which("strip") and shutil.which("ldd"), "needs strip and ldd")
class BundleTest(FolderTest):
    def test_open_mpi_5_has_no_orted(self) -> None:
        """The stand-ins for the programs are copies of bash, which needs a library besides glibc."""
        mpi = self.folder / "mpi"
        for name in ("bindir", "pkglibdir", "pkgdatadir", "sysconfdir"):
            (mpi / name).mkdir(parents=True)
        for name in ("mpirun", "prterun", "prted"):
            shutil.copy(shutil.which("bash") or "", mpi / "bindir" / name)
        told = "".join(f"echo path:{folder.name}:{folder}\n" for folder in mpi.iterdir())
        executable(self.folder / "bin" / "ompi_info", f"#!/bin/sh\n{told}")
        environment = {**os.environ, "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}"}
        program = shutil.which("bash")
        execute(SCRIPTS / "maintain" / "bundle", self.folder / "build", program, code=0, env=environment)
        (archive,) = (self.folder / "build" / "bundle").glob("*.tar.gz")
        with tarfile.open(archive) as opened:
            names = {name.partition("/")[2] for name in opened.getnames()}
        for name in ("bash", "mpirun", "prterun", "prted"):
            self.assertLessEqual({f"bin/{name}", f"libexec/{name}"}, names)
        self.assertNotIn("bin/orted", names)
