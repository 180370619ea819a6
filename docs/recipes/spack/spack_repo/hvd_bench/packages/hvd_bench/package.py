"""Spack package of hvd_bench, for Spack 1.0 and newer. See docs/recipes/README.md for how to use it."""

from spack.package import *
from spack_repo.builtin.build_systems.cmake import CMakePackage


class HvdBench(CMakePackage):
    """Benchmark of synchronous data-parallel training with an embedded collective engine in Horovod's manner."""

    homepage = "https://example.org/hvd_bench"  # set both to where your copy lies
    git = "https://example.org/hvd_bench.git"

    license("Apache-2.0")

    version("main", branch="main")

    variant("mpi", default=True, description="Ranks as processes, launched by mpirun, srun or jsrun")
    variant("onednn", default=True, description="Train on CPUs with oneDNN")
    variant("hwloc", default=True, description="Tell NUMA nodes and ranks that are not bound to one")
    variant("cuda", default=False, description="Fail without the CUDA Toolkit")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("cmake@3.25:", type="build")
    depends_on("ninja", type="build")
    depends_on("git", type="build")  # the commit is part of a run's provenance
    depends_on("cli11@2.1:")
    depends_on("fmt@9:")
    depends_on("sqlite@3.37:")  # STRICT tables
    depends_on("mpi", when="+mpi")
    depends_on("onednn@2.6:", when="+onednn")
    depends_on("hwloc@2.5:", when="+hwloc")
    depends_on("cuda@12:", when="+cuda")
    depends_on("python@3.10:", type="run")  # the scripts that read the store
    depends_on("py-numpy", type="run")
    depends_on("py-matplotlib", type="run")

    conflicts("%gcc@:10", msg="needs C++20 of GCC 11 or newer")
    conflicts("%clang@:13", msg="needs C++20 of Clang 14 or newer")

    generator("ninja")

    def cmake_args(self):
        return [
            self.define_from_variant("HVD_WITH_MPI", "mpi"),
            self.define_from_variant("HVD_WITH_ONEDNN", "onednn"),
            self.define_from_variant("HVD_WITH_HWLOC", "hwloc"),
            self.define_from_variant("HVD_WITH_CUDA", "cuda"),
            self.define("HVD_BUILD_TESTS", False),
            self.define("HVD_BUILD_MICROBENCH", False),
        ]
