"""Makes the relocatable bundle: programs, tests of label gpu, scripts, and the shared libraries that a host may lack.

    <name>/bin, tests     links to bin/run, which starts libexec/<program>
    <name>/libexec        the programs, with RPATH $ORIGIN/../lib
    <name>/lib            shared libraries; lib/openmpi: Open MPI's plugins
    <name>/glibc          a glibc for hosts whose own glibc is older than the programs need
    <name>/scripts        gpu_check and the scripts that it calls

The bundle never contains CUDA, cuDNN and NCCL, which must fit the host's driver. The CMake target `bundle` runs
this program.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterable
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(SOURCE / "scripts"))
from maintain.gpucheck import ctest  # noqa: E402

GLIBC = re.compile(r"(ld-linux.*|lib(c|m|dl|rt|pthread|resolv|util|nsl|anl|BrokenLocale))\.so(\.\d+)?$")
# Libraries that the host must have, because they must fit its driver.
HOST = re.compile(r"lib(cuda|cudart|cudnn|nccl|cublas|cufft|curand|cusolver|cusparse|cupti|nv)")
# Libraries that only Open MPI's plugins need. Plugins that need UCX, libfabric, verbs or PSM are left out.
PLUGIN_HELPER = re.compile(r"libmca_common_")
GLIBC_FILES = ("ld-linux-x86-64.so.2", "libc.so.6", "libm.so.6", "libdl.so.2", "librt.so.1", "libpthread.so.0")
GLIBC_FILES += ("libresolv.so.2", "libutil.so.1")
FILES = ("LICENSE", "docs/gpu_check.md", "results/schema.sql", "scripts/maintain/gpu_check")
FILES += ("scripts/maintain/__init__.py", "scripts/hvdb/__init__.py", "scripts/hvdb/whole_file.py")
FOLDERS = ("scripts/maintain/gpucheck", "scripts/maintain/peers", "scripts/lib")


class BundleError(RuntimeError):
    """A file or library is missing on this machine. The error's text names it."""


def output_of(*command: str | Path) -> str:
    """Returns the standard output of a command. Errors: BundleError with the command's message."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, timeout=120)
    if done.returncode != 0:
        raise BundleError(f"{' '.join(str(word) for word in command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def libraries_of(file: Path) -> dict[str, Path]:
    """Returns name -> path of all shared libraries that this machine's loader finds for `file`."""
    found = {}
    for line in output_of("ldd", file).splitlines():
        name, arrow, rest = line.strip().partition(" => ")
        if not arrow:
            continue
        if rest.startswith("not found"):
            raise BundleError(f"{file} needs {name}, which is not here")
        found[name] = Path(rest.rsplit(" (", 1)[0])
    return found


def foreign(libraries: dict[str, Path]) -> dict[str, Path]:
    """Returns the libraries that belong neither to glibc nor to the GPU's driver."""
    return {name: path for name, path in libraries.items() if not GLIBC.match(name) and not HOST.match(name)}


def glibc_version_of(file: Path) -> tuple[int, ...]:
    """Returns the newest glibc version that `file` needs; (0,) if `file` does not need glibc."""
    versions = re.findall(r"Name: GLIBC_([0-9.]+)", output_of("readelf", "-V", "-W", file))
    return max((tuple(int(n) for n in version.split(".")) for version in versions), default=(0,))


class Bundle:
    def __init__(self, folder: Path, patchelf: str) -> None:
        self.folder = folder
        self._patchelf = patchelf
        self.objects: list[Path] = []  # the original files of everything that was copied
        shutil.rmtree(folder, ignore_errors=True)
        for name in ("bin", "tests", "libexec", "lib", "glibc", "licenses"):
            (folder / name).mkdir(parents=True)
        shutil.copy2(SOURCE / "scripts/maintain/bundle/run", folder / "bin/run")

    def binary(self, source: Path, target: str, rpath: str) -> None:
        """Copies a program or a library without its symbols, and makes it look for its libraries in `rpath`."""
        copy = self.folder / target
        shutil.copy2(source.resolve(), copy)
        copy.chmod(0o755)
        output_of("strip", "--strip-unneeded", copy)
        # RPATH, because RUNPATH does not apply to libraries that plugins need.
        output_of(self._patchelf, "--force-rpath", "--set-rpath", rpath, copy)
        self.objects.append(source.resolve())

    def program(self, source: Path, folder: str, name: str | None = None) -> None:
        name = name or source.name
        if not (self.folder / "libexec" / name).exists():
            self.binary(source, f"libexec/{name}", "$ORIGIN/../lib")
        (self.folder / folder / name).symlink_to("run" if folder == "bin" else "../bin/run")

    def libraries(self, libraries: dict[str, Path]) -> None:
        for name, path in libraries.items():
            if not (self.folder / "lib" / name).exists():
                self.binary(path, f"lib/{name}", "$ORIGIN")

    def plugins(self, source: Path, target: str) -> list[str]:
        """Copies the plugins in `source` whose libraries are all in the bundle. Returns the other plugins' names."""
        have = {path.name for path in (self.folder / "lib").iterdir()}
        (self.folder / target).mkdir()
        left = []
        for plugin in sorted(source.glob("*.so")):
            needs = foreign(libraries_of(plugin))
            if any(name not in have and not PLUGIN_HELPER.match(name) for name in needs):
                left.append(plugin.stem)
                continue
            self.libraries({name: path for name, path in needs.items() if name not in have})
            self.binary(plugin, f"{target}/{plugin.name}", "$ORIGIN/..")
        return left

    def glibc(self, example: Path) -> str:
        """Copies glibc. Returns the version that the bundle's programs and libraries need."""
        home = libraries_of(example)["libc.so.6"].parent
        self._glibc_home = home
        for name in GLIBC_FILES:
            if (home / name).exists():
                shutil.copy2((home / name).resolve(), self.folder / "glibc" / name)
        needed = ".".join(str(n) for n in max(glibc_version_of(file) for file in self.objects))
        (self.folder / "glibc" / "needed").write_text(needed + "\n", encoding="utf-8")
        return needed

    def licences(self) -> list[str]:
        """Copies the copyright files of the libraries' Debian packages. Returns libraries without such a file."""
        if shutil.which("dpkg-query") is None:
            return [str(path) for path in self.objects]
        without = []
        for source in [*self.objects, (self._glibc_home / "libc.so.6").resolve()]:
            # /lib is a link to /usr/lib, and the package may list either path.
            names = {str(source), str(source).removeprefix("/usr")}
            owners = [
                subprocess.run(["dpkg-query", "-S", n], capture_output=True, text=True, check=False) for n in names
            ]
            packages = {done.stdout.split(":")[0] for done in owners if done.returncode == 0}
            texts = [Path("/usr/share/doc") / package / "copyright" for package in packages]
            for text in texts:
                if text.exists():
                    shutil.copyfile(text, self.folder / "licenses" / text.parent.name)
            if not texts:
                without.append(str(source))
        return without


def mpi_of(mpirun: Path | None) -> tuple[Path, Path, Path] | None:
    """Returns the folders of plugins, help texts and configuration of the Open MPI here; None without Open MPI."""
    if mpirun is None or not mpirun.exists():
        return None
    info = output_of(mpirun.with_name("ompi_info"), "--all", "--parsable")
    paths = dict(re.findall(r"^path:(pkglibdir|pkgdatadir|sysconfdir):(.*)$", info, re.MULTILINE))
    return Path(paths["pkglibdir"]), Path(paths["pkgdatadir"]), Path(paths["sysconfdir"])


def add_mpi(bundle: Bundle, mpirun: Path | None) -> list[str]:
    """Adds Open MPI: launcher, plugins, texts, settings. Returns the plugins that were left out."""
    places = mpi_of(mpirun)
    if places is None or mpirun is None:
        return []
    plugins, texts, settings = places
    for name in ("mpirun", "orted"):
        bundle.program(mpirun.with_name(name), "bin", name)
    bundle.libraries(foreign(libraries_of(mpirun.with_name("orted"))))
    shutil.copytree(texts, bundle.folder / "share/openmpi")
    shutil.copytree(settings, bundle.folder / "etc/openmpi")
    left = []
    if (client := plugins / "mca_pmix_ext3x.so").exists():  # True if this Open MPI uses a separate PMIx library
        pmix = libraries_of(client)
        bundle.libraries(foreign(pmix))
        home = pmix["libpmix.so.2"].resolve().parent
        shutil.copytree(home.parent / "share/pmix", bundle.folder / "share/pmix")
        left += bundle.plugins(home / "pmix", "lib/pmix")
    return left + bundle.plugins(plugins, "lib/openmpi")


def add_tests(bundle: Bundle, tests: Iterable[ctest.GpuTest], mpirun: Path | None) -> None:
    """Adds the programs of the tests, and tests/tests.json with the commands that start them."""
    kept = []
    for test in tests:
        command = []
        for word in test.command:
            file = Path(word)
            if mpirun is not None and file.name in ("mpirun", "mpiexec"):
                command.append(f"{ctest.ROOT_MARK}/bin/mpirun")
            elif file.is_absolute() and file.is_file() and os.access(file, os.X_OK):
                if not (bundle.folder / "tests" / file.name).exists():
                    bundle.program(file, "tests")
                    bundle.libraries(foreign(libraries_of(file)))
                command.append(f"{ctest.ROOT_MARK}/tests/{file.name}")
            else:
                command.append(word)
        kept.append(ctest.GpuTest(test.name, command, test.seconds, test.environment))
    ctest.write(kept, bundle.folder / "tests" / "tests.json")


def add_scripts(bundle: Bundle) -> None:
    """Adds the scripts for the host: gpu_check, the comparisons with PyTorch, and a page that explains them."""
    ignore = shutil.ignore_patterns("__pycache__", "*.pyc")
    for name in FOLDERS:
        shutil.copytree(SOURCE / name, bundle.folder / name, ignore=ignore)
    for name in FILES:
        (bundle.folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(SOURCE / name, bundle.folder / name)


def commit() -> str:
    """Returns the commit of the sources, with -dirty if they were changed."""
    done = subprocess.run(
        ["git", "-C", str(SOURCE), "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"


def pack(folder: Path) -> Path:
    """Writes folder.tar.gz beside the folder. Equal files give equal bytes."""

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = entry.mtime = 0
        entry.uname = entry.gname = ""
        return entry

    target = folder.with_name(folder.name + ".tar.gz")
    with tarfile.open(target, "w:gz", compresslevel=6) as tar:
        for path in sorted([folder, *folder.rglob("*")]):
            tar.add(path, path.relative_to(folder.parent), recursive=False, filter=plain)
    return target


def main() -> int:
    """Returns 0, or 2 after printing one line that says what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, required=True, help="build folder, whose tests ctest knows")
    parser.add_argument("--output", type=Path, required=True, help="the folder to make; the tar comes beside it")
    parser.add_argument("--patchelf", default="patchelf")
    parser.add_argument("--ctest", default="ctest")
    parser.add_argument("--mpirun", type=Path, help="of the Open MPI that the programs are linked with")
    parser.add_argument("programs", nargs="+", type=Path)
    options = parser.parse_args()
    try:
        bundle = Bundle(options.output, options.patchelf)
        for program in options.programs:
            bundle.program(program, "bin")
            bundle.libraries(foreign(libraries_of(program)))
        left = add_mpi(bundle, options.mpirun)
        add_tests(bundle, ctest.of_build(options.build, options.ctest), options.mpirun)
        add_scripts(bundle)
        needed = bundle.glibc(options.programs[0])
        without = bundle.licences()
        manifest = {
            "commit": commit(),
            "glibc_needed": needed,
            "plugins_left_behind": left,
            "without_licence_text": [name for name in without if not name.startswith(str(options.build.resolve()))],
            "files": {
                str(path.relative_to(bundle.folder)): hashlib.sha256(path.read_bytes()).hexdigest()
                for path in sorted(bundle.folder.rglob("*"))
                if path.is_file() and not path.is_symlink()
            },
        }
        (bundle.folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
        tar = pack(bundle.folder)
    except (BundleError, OSError, subprocess.SubprocessError, ValueError) as error:
        print(f"bundle: {error}", file=sys.stderr)
        return 2
    print(
        f"{tar}: {tar.stat().st_size / 2**20:.1f} MiB; programs need glibc {needed}; older hosts use the bundle's own"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
