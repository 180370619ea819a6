"""Tests the shell entry points: a failed check fails the whole run, the right Python is found, and advice is given."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import unittest
from pathlib import Path

from harness import SCRIPTS, FolderTest, eventually, executable, execute
from synthetic_store import REPOSITORY, SessionSpec, make


def shell(command: str, cwd: Path, code: int | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    return execute("/bin/bash", "-c", command, code=code, cwd=cwd, env={**os.environ, **environment})


VENV_WITH_A_PIP = """#!/bin/sh
mkdir -p "$3/bin"
cat >"$3/bin/pip" <<'PIP'
#!/bin/sh
[ -z "$PIP_FAILS" ] || exit 1
while [ "$1" != --target ]; do shift; done
cd "$(mkdir -p "$2" && cd "$2" && pwd)" && mkdir -p nvidia_cudnn_cu13-9.dist-info
put() { mkdir -p "$(dirname "nvidia/$1")" && printf '#!/bin/sh\\n' >"nvidia/$1" && chmod +x "nvidia/$1"; }
for file in cu13/bin/nvcc cu13/lib/libcudart.so.13 cudnn/include/cudnn.h cudnn/lib/libcudnn.so.9 nccl/lib/libnccl.so.2
do put "$file"; done
PIP
chmod +x "$3/bin/pip"
"""


class EntryPointTest(FolderTest):
    def setUp(self) -> None:
        super().setUp()
        self.path = f"{self.folder / 'bin'}:{os.environ['PATH']}"  # where program() puts stand-ins

    def checkout(self, **stand_ins: str) -> Path:
        """Copies the scripts into a new repository. Returns the repository's folder.

        stand_ins: name of a script in scripts/ -> the text, without its first line, of the script in its place.
        """
        copy = self.folder / "checkout"
        shutil.copytree(SCRIPTS, copy / "scripts")
        shutil.copytree(REPOSITORY / ".ci", copy / ".ci")
        for name, text in stand_ins.items():
            (copy / "scripts" / name).write_text("#!/usr/bin/env bash\n" + text, encoding="utf-8")
        shell("git init -q . && git add -A", copy, code=0)
        return copy

    def program(self, name: str, text: str) -> None:
        """Makes an executable with this text in self.folder / bin."""
        executable(self.folder / "bin" / name, text)

    def link_programs(self, *names: str) -> None:
        """Puts programs of this machine into self.folder / bin, which is then the whole PATH of a bare machine."""
        (self.folder / "bin").mkdir(exist_ok=True)
        for name in names:
            (self.folder / "bin" / name).symlink_to(shutil.which(name))

    @unittest.skipUnless(shutil.which("shellcheck"), "needs shellcheck")
    def test_the_last_line_counts_and_a_failure_fails(self) -> None:
        copy = self.checkout(install_deps="")
        good = shell("scripts/test --only shell", copy, code=0)
        self.assertEqual(good.stdout.splitlines()[-1], "1 passed, 0 failed")
        (copy / "scripts" / "bad.sh").write_text("#!/usr/bin/env bash\nrm -rf $1/*\n", encoding="utf-8")
        bad = shell("scripts/test --only shell", copy, code=1)
        self.assertEqual(bad.stdout.splitlines()[-1], "0 passed, 1 failed")
        self.assertIn("SC2086", bad.stderr)
        self.assertIn("run it alone: scripts/test --only shell", bad.stderr)

    def test_each_size_chooses_its_tests(self) -> None:
        asked = self.folder / "asked"
        copy = self.checkout(install_deps="", build=f'echo "build $*" >>{asked}\n')
        self.program("ctest", f'#!/bin/sh\necho "ctest $*" >>{asked}\nexit 1\n')
        for command, target, chosen in (
            ("scripts/test --quick", "release --target quick_tests ", "-L unit|quick -LE slow|long"),
            ("scripts/test --only release", "release ", "-LE long"),
            ("scripts/test --all --only release", "release ", ""),
            (".ci/run --only release", "release ", ""),
        ):
            with self.subTest(command):
                asked.unlink(missing_ok=True)
                shell(command, copy, PATH=self.path)
                build, tests = asked.read_text(encoding="utf-8").splitlines()
                self.assertEqual(build, f"build {target}-DHVD_WERROR=ON")
                self.assertEqual(tests.partition("--test-output-size-failed 1000000")[2].strip(), chosen)

    def test_that_the_gpu_code_is_not_compiled_is_said_once(self) -> None:
        line = "not compiled: no CUDA Toolkit 12.0 or newer; scripts/install_deps --cuda fetches one"
        copy = self.checkout(install_deps="", build=f"echo '--   GPU code    {line}'\n")
        done = shell("scripts/test --quick", copy)
        self.assertEqual(done.stdout.count("GPU code"), 1)
        self.assertIn(f"\nGPU code is {line}\n", done.stdout)
        (copy / "scripts" / "build").write_text("#!/bin/sh\necho '--   GPU code    kernels for sm_80;90'\n")
        self.assertNotIn("GPU code", shell("scripts/test --quick", copy).stdout)

    def test_a_failing_build_is_counted_and_its_tests_are_not_run(self) -> None:
        """The last build kills its parent, the process of scripts/test that waits for it."""
        for stage, build in (
            ("--quick", "echo no compiler\nexit 1\n"),
            ("--only asan", "echo no compiler\nexit 1\n"),  # beside the tests
            ("--only asan", "echo no compiler\nkill -9 $PPID\n"),
        ):
            with self.subTest(stage, build=build):
                shutil.rmtree(self.folder / "checkout", ignore_errors=True)
                done = shell(f"scripts/test {stage}", self.checkout(install_deps="", build=build), code=1)
                self.assertEqual(done.stdout.splitlines()[-1], "0 passed, 1 failed")
                self.assertIn("no compiler", done.stderr)

    def test_an_interrupted_run_leaves_no_build_behind(self) -> None:
        copy = self.checkout(install_deps="", build=f"echo $$ >{self.folder}/pid\nexec sleep 100\n")
        running = subprocess.Popen(["scripts/test", "--only", "asan"], cwd=copy, stdout=subprocess.DEVNULL)
        self.addCleanup(running.kill)
        note = self.folder / "pid"
        eventually(lambda: note.exists() and note.read_text().strip())
        running.send_signal(signal.SIGTERM)
        self.assertEqual(running.wait(30), 130)
        process = Path("/proc", note.read_text().strip())
        eventually(lambda: not process.exists())

    def test_the_quickstart_builds_what_it_runs_and_a_build_all(self) -> None:
        copy = self.checkout(install_deps="")
        log = self.folder / "cmake.txt"
        self.program("cmake", f'#!/bin/sh\necho "$@" >>{log}\n')
        for command, configured, built in (
            # ends here, because there is no program
            (
                "scripts/quickstart",
                "release -DHVD_BUILD_TESTS=OFF -DHVD_BUILD_MICROBENCH=OFF",
                "release --target hvd_bench",
            ),
            ("scripts/build", "release", "release"),
            ("scripts/build dev -DX=Y", "dev -DX=Y", "dev"),
            ("scripts/build dev --target a_test -DX=Y", "dev -DX=Y", "dev --target a_test"),
        ):
            shell(command, copy, PATH=self.path)
            self.assertEqual(log.read_text().splitlines(), [f"--preset {configured}", f"--build build/{built}"])
            log.unlink()
        nameless = shell("scripts/build dev --target", copy, PATH=self.path)
        self.assertNotEqual(nameless.returncode, 0)
        self.assertIn("--target needs a name", nameless.stderr)
        self.assertFalse(log.exists())

    def test_the_quickstart_profiles_the_batch_that_was_fitted(self) -> None:
        shows = dict.fromkeys(("efficiency", "plot", "report"), "echo shown\n")
        copy = self.checkout(install_deps="", build="", **shows)
        fitted = SessionSpec(batch_size=1, columns={"image_size": 192})
        fitted.provenance["sgd.learning_rate"] = ("0.0025", 0)
        make(self.folder / "fitted.db", fitted)
        log = self.folder / "commands.txt"
        stand_in = f"""#!/bin/sh
echo "$@" >>{log}
while [ "$1" != --db ]; do shift; done
cp {self.folder / "fitted.db"} "$2"
"""
        executable(copy / "build/release/bin/hvd_bench", stand_in)
        self.program("mpirun", '#!/bin/sh\nshift 2\nexec "$@"\n')
        for command, chosen in (
            ("scripts/quickstart", r"--batch-size [12] --image-size \d+ --max-time 27 "),
            ("scripts/quickstart --long", "--batch-size 4 --max-time 100 "),
        ):
            log.unlink(missing_ok=True)
            done = shell(command, copy, 0, PATH=self.path)
            self.assertEqual(done.stdout.splitlines().count("shown"), 3, done.stdout)
            asked = log.read_text(encoding="utf-8").splitlines()
            self.assertEqual(len(asked), 6, asked)
            for measured, profiled in zip(asked[::2], asked[1::2], strict=True):
                self.assertRegex(measured, f"--efficiency --fit --threads 1 {chosen}")
                self.assertIn("--profile --threads 1 --batch-size 1 --image-size 192 --learning-rate 0.0025 ", profiled)

    def test_missing_packages_of_the_scripts_end_the_quickstart(self) -> None:
        copy = self.checkout(install_deps='[ "$1" != --scripts ] || { echo no matplotlib; exit 2; }\n', build="")
        done = shell("scripts/quickstart", copy, 2)
        self.assertIn("no matplotlib", done.stderr)

    def test_a_bare_debian_is_counted(self) -> None:
        ends = (
            ("echo '3 passed, 0 failed, 1 skipped'", 0, "1 passed, 0 failed"),
            ("echo '3 passed, 0 failed, 1 skipped'; exit 1", 1, "0 passed, 1 failed"),
            ("echo no bare Debian here: no network; exit 77", 0, "0 passed, 0 failed, 1 skipped"),
        )
        for script, code, counted in ends:
            with self.subTest(script):
                shutil.rmtree(self.folder / "checkout", ignore_errors=True)
                stand_ins = {"install_deps": "", "build": "", "lib/bare_debian.sh": f"echo $1\n{script}\n"}
                copy = self.checkout(**stand_ins)
                done = shell("scripts/test --only bare --all-releases", copy, code)
                both = [line.split(maxsplit=2)[2] for line in done.stdout.splitlines() if line.startswith("bare-")]
                self.assertEqual(both, [counted, counted], done.stdout)

    def test_benchmarks_asks_for_a_whole_build(self) -> None:
        copy = self.checkout()
        executable(copy / "build/release/bin/hvd_bench", "#!/bin/sh\n")
        done = shell("scripts/maintain/benchmarks out bf16", copy, code=2)
        self.assertIn("train_step_bench: run scripts/build", done.stderr)

    def try_arm(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Runs try_arm with stand-ins for the programs that download, compile and emulate."""
        self.program("apt-get", '#!/bin/sh\nif [ -n "$APT_FAILS" ]; then echo no network >&2; exit 100; fi\n')
        self.program("dpkg-deb", "#!/bin/sh\n")
        self.program("cmake", '#!/bin/sh\necho "cmake $*" >>"$LOG"; [ "$1" != --build ] || exit ${BUILD_FAILS:-0}\n')
        for name in ("aarch64-linux-gnu-g++", "ninja"):
            self.program(name, "#!/bin/sh\n")
        emulator = """#!/bin/sh
echo "qemu $QEMU_CPU $QEMU_PAGESIZE $*" >>"$LOG"
echo '[  PASSED  ] 3 tests.'
case $* in *"${TEST_FAILS:-none}") exit 1 ;; esac
"""
        self.program("qemu-aarch64-static", emulator)
        self.program("mpirun", '#!/bin/sh\nwhile [ "${1##*/}" != qemu-aarch64-static ]; do shift; done; exec "$@"\n')
        command = shlex.join([str(SCRIPTS / "maintain" / "try_arm"), "--folder", str(self.folder / "arm"), *arguments])
        environment = {"PATH": self.path, **environment}
        return shell(command, self.folder, LOG=str(self.folder / "log.txt"), **environment)

    @unittest.skipUnless("VERSION_CODENAME=" in Path("/etc/os-release").read_text(encoding="utf-8"), "needs Debian")
    def test_try_arm_builds_once_and_runs_every_test(self) -> None:
        for _ in range(2):
            done = self.try_arm()
            if done.returncode == 77:
                self.skipTest(done.stderr)  # not Debian 12 or 13
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertEqual(done.stdout.splitlines()[-1], "Arm: all good")
            self.assertRegex(done.stdout, r"(?m)^base_test +good +\d+ s +PASSED 3 tests$")
        said = (self.folder / "log.txt").read_text(encoding="utf-8")
        self.assertIn("--toolchain", said)
        for part in ("qemu neoverse-n1  -L", "qemu max,sve-max-vq=2  -L", "qemu neoverse-n1 65536 -L"):
            self.assertIn(part, said)
        failed = self.try_arm(TEST_FAILS="tests/comm_test")
        self.assertEqual(failed.returncode, 1)
        self.assertRegex(failed.stdout, r"Arm: failed: comm_test comm_test-64k \(logs in .*/arm/logs\)\n$")
        self.assertEqual(self.try_arm(BUILD_FAILS="2").returncode, 1)

    def test_try_arm_says_why_it_is_skipped(self) -> None:
        self.assertEqual(self.try_arm("--fresh").returncode, 2)
        done = self.try_arm(APT_FAILS="1")
        self.assertEqual((done.returncode, done.stdout.count("building")), (77, 0), done.stderr)
        self.assertIn("try_arm: skipped: ", done.stderr)

    def test_a_link_to_a_script_works(self) -> None:
        for script in sorted(path for path in SCRIPTS.iterdir() if path.is_file() and os.access(path, os.X_OK)):
            link = self.folder / script.name
            link.symlink_to(script)
            through = self.folder / f"{script.name}-again"
            through.symlink_to(link.name)
            done = shell(f"{through} --help", self.folder)
            self.assertEqual((done.returncode, done.stderr), (0, ""), f"{script.name}: {done.stdout}")

    def test_one_core_makes_room_for_two_ranks_in_open_mpi_4_and_5(self) -> None:
        asks = "source scripts/lib/shell.sh; hvd_prepare_mpi; env | grep -oE '^(OMPI|PRTE)_MCA_[^=]*=.*' | sort"
        for cores, set_here in (
            (1, ["OMPI_MCA_rmaps_base_oversubscribe=1", "PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe"]),
            (2, []),
        ):
            self.program("nproc", f"#!/bin/sh\necho {cores}\n")
            done = shell(f"unset ${{!OMPI_MCA_@}} ${{!PRTE_MCA_@}}; {asks}", REPOSITORY, PATH=self.path)
            variables = [line for line in done.stdout.splitlines() if "yield_when_idle" not in line]
            self.assertEqual(variables, set_here, done.stderr)

    def test_a_newer_python_beside_python3_is_found(self) -> None:
        """As on RHEL 9, where python3 is 3.9: the stand-in for it fails whenever it is asked, and the other never."""
        copy = self.checkout()
        self.program("python3", "#!/bin/sh\nexit 1\n")
        self.program("python3.14", '#!/bin/sh\n[ $# = 2 ] || echo "newer $3 $4"\n')
        environment = {"PATH": self.path, "HVD_PYTHON": ""}
        for command in ("efficiency", "campaign", "--help"):
            started = shell(f"source scripts/lib/python.sh; hvd_exec {command}", copy, code=0, **environment)
            self.assertEqual(started.stdout, f"newer hvdb {command}\n")
            alone = f"source scripts/lib/python.sh; HVD_PYTHONS=(python3); hvd_exec {command}"
            self.assertRegex(shell(alone, copy, code=2, **environment).stderr, r"^no Python 3\.1[01]\b.*HVD_PYTHON\n$")

    def test_the_python_of_the_checkout_comes_before_that_of_the_path(self) -> None:
        copy = self.checkout()
        own = copy / "build" / "python" / "bin" / "python"
        own.parent.mkdir(parents=True)
        script = 'source scripts/lib/python.sh && hvd_choose_python && echo "$HVD_PYTHON"'
        for good in (False, True):
            own.unlink(missing_ok=True)
            own.symlink_to("/bin/true" if good else "/bin/false")
            chosen = shell(script, copy, HVD_PYTHON="")
            self.assertEqual("build/python/bin/python" in chosen.stdout, good, chosen.stderr)

    def test_without_pypi_all_but_ruptures_is_installed(self) -> None:
        copy = self.checkout()
        self.program("dpkg-query", "#!/bin/sh\necho install ok installed\n")
        done = shell("scripts/install_deps --tests", copy, PATH=self.path, PIP_NO_INDEX="1", code=0)
        self.assertIn("missing: ruptures, into build/python (1 MB): ruptures==", done.stdout)
        self.assertRegex(done.stderr, "could not be installed from PyPI.*\n.*going on without ruptures")
        self.assertFalse((copy / "build" / "python").exists())

    def test_other_systems_get_a_list(self) -> None:
        self.link_programs("bash", "dirname", "readlink", "cat", "id", "env")
        done = shell("scripts/install_deps", REPOSITORY, PATH=str(self.folder / "bin"), code=2)
        for what in ("C++20", "MPI", "oneDNN", "SQLite"):
            self.assertIn(what, done.stderr)

    def test_cuda_is_fetched_once_and_only_where_there_is_none(self) -> None:
        copy = self.checkout()
        self.program("dpkg-query", "#!/bin/sh\necho install ok installed\n")
        self.program("nvcc", "#!/bin/sh\necho Cuda compilation tools, release 11.8, V11.8.89\n")
        # This Python makes a venv whose pip downloads nothing. The pip only creates the files that wheels would bring.
        self.program("python3", VENV_WITH_A_PIP)
        dry = shell("scripts/install_deps --cuda --dry-run", copy, PATH=self.path, code=0)
        self.assertIn("missing: CUDA, into build/cuda-toolkit", dry.stdout)
        self.assertIn("nvidia-cuda-nvcc==13.0.88", dry.stdout)
        self.assertFalse((copy / "build").exists())

        failed = shell("scripts/install_deps --cuda", copy, PATH=self.path, PIP_FAILS="1", code=2)
        self.assertIn("could not be installed from PyPI", failed.stderr)
        self.assertFalse((copy / "build" / "cuda-toolkit").exists())

        shell("scripts/install_deps --cuda", copy, PATH=self.path, code=0)
        toolkit = copy / "build" / "cuda-toolkit"
        for file in ("bin/nvcc", "include/cudnn.h", "lib/libcudart.so.13", "lib/libcudart.so", "lib64/libnccl.so"):
            self.assertTrue((toolkit / file).exists(), file)
        self.assertEqual((toolkit / "lib" / "libcudnn.so").readlink(), Path("libcudnn.so.9"))
        self.assertTrue((toolkit / "licences" / "nvidia_cudnn_cu13-9.dist-info").is_dir())
        again = shell("scripts/install_deps --cuda", copy, PATH=self.path, PIP_FAILS="1")
        self.assertEqual((again.returncode, again.stdout.splitlines()[-1]), (0, "CUDA is there: build/cuda-toolkit"))

        shutil.rmtree(copy / "build")
        self.program("nvcc", "#!/bin/sh\necho Cuda compilation tools, release 12.4, V12.4.131\n")
        # An empty hvd_system_prefixes hides the CUDA libraries of this machine.
        asks = "source scripts/lib/cuda_wheels.sh; hvd_system_prefixes=(); hvd_machine_has_cuda"
        for header in ("cudnn_backend.h", "nccl.h"):
            alone = shell(asks, copy, PATH=self.path)
            self.assertEqual((alone.returncode, alone.stdout), (1, ""))
            self.assertIn(f"there is {self.folder}/bin/nvcc, but no {header}: ", alone.stderr)
            (self.folder / "include").mkdir(exist_ok=True)
            (self.folder / "include" / header).touch()
        second = shell("scripts/install_deps --cuda", copy, PATH=self.path, PIP_FAILS="1")
        self.assertEqual(second.stdout.splitlines()[-1], f"CUDA is there: {self.folder}/bin/nvcc")

    def test_without_root_or_sudo_it_says_what_to_ask_for(self) -> None:
        self.link_programs("bash", "dirname", "readlink", "cat", "env")
        self.program("dpkg-query", "#!/bin/bash\nexit 1\n")
        self.program("apt-get", "#!/bin/bash\necho must not be called; exit 1\n")
        self.program("id", "#!/bin/bash\necho 1000\n")
        done = shell("scripts/install_deps", REPOSITORY, PATH=str(self.folder / "bin"), code=2)
        self.assertIn("apt-get install g++ cmake", done.stderr)
        self.assertNotIn("must not be called", done.stdout)

    def test_a_peer_that_cannot_be_installed_leaves_the_others(self) -> None:
        checkout = self.checkout()
        self.program("dpkg-query", "#!/bin/sh\necho install ok installed\n")
        lines = (checkout / "scripts" / "install_deps").read_text(encoding="utf-8")
        table = lines.partition("peer_table='")[2].partition("'")[0].splitlines()
        self.assertEqual(len(table), 5)
        for name, _, _, _, wheels in (line.split("|") for line in table):
            if name != "mpich":
                executable(checkout / "build" / "peers" / name / "wheels.txt", f"{wheels}\n")
        done = shell(
            "scripts/install_deps --peers", checkout, PATH=self.path, PIP_NO_INDEX="1", PIP_FIND_LINKS="", code=2
        )
        self.assertIn("could not be installed: MPICH 5.0;", done.stderr)
        self.assertIn("oneCCL 2021.15 is there: build/peers/oneccl", done.stdout)
        self.assertFalse((checkout / "build" / "peers" / "mpich").exists())
