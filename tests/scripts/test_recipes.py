"""Checks docs/recipes as far as the available tools allow. docs/recipes/README.md lists what is not checked."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

from harness import SCRIPTS, FolderTest, executable, execute
from synthetic_store import REPOSITORY

import hvdb

RECIPES = REPOSITORY / "docs" / "recipes"
MODULES = next(
    (p for p in map(Path, ("/usr/share/modules/init/bash", "/usr/share/Modules/init/bash")) if p.exists()), None
)


def instructions(path: Path) -> list[tuple[str, str]]:
    """Returns the (instruction, argument) pairs of a Dockerfile, with continued lines joined."""
    joined = re.sub(r"\\\n", " ", path.read_text(encoding="utf-8"))
    lines = [line.strip() for line in joined.splitlines() if line.strip() and not line.startswith("#")]
    return [(line.split()[0], line.split(None, 1)[1]) for line in lines]


def sections(path: Path) -> list[tuple[str, str]]:
    """Returns the (section, body) pairs of an Apptainer definition. Each stage's header is a section 'header'."""
    parts: list[tuple[str, list[str]]] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            continue
        if line.startswith("%"):
            parts.append((line[1:].strip(), []))
        elif re.match(r"Bootstrap:", line):
            parts.append(("header", [line]))
        elif parts:
            parts[-1][1].append(line.strip())
    return [(name, "\n".join(body).strip()) for name, body in parts]


def script_lines(body: str) -> list[str]:
    return [" ".join(line.split()) for line in body.splitlines() if line.strip()]


class DockerfileTest(unittest.TestCase):
    def setUp(self) -> None:
        self.steps = instructions(RECIPES / "Dockerfile")

    def test_the_user_is_not_root(self) -> None:
        self.assertIn(("USER", "1000"), self.steps)

    def test_what_is_copied_exists(self) -> None:
        for name, argument in self.steps:
            words = shlex.split(argument)
            if name == "COPY" and not words[0].startswith("--from"):
                self.assertTrue((REPOSITORY / words[0]).exists(), argument)

    def test_what_is_run_parses_and_exists(self) -> None:
        runs = [argument for name, argument in self.steps if name == "RUN"]
        self.assertGreaterEqual(len(runs), 4)
        for command in runs:
            self.assertEqual(subprocess.run(["sh", "-n", "-c", command], check=False).returncode, 0, command)
            for script in re.findall(r"\bscripts/\w+", command):
                self.assertTrue(os.access(REPOSITORY / script, os.X_OK), script)

    def test_options_of_the_build_exist(self) -> None:
        known = (REPOSITORY / "cmake" / "Options.cmake").read_text(encoding="utf-8")
        for option in re.findall(r"-D(HVD_\w+)=", " ".join(argument for _, argument in self.steps)):
            feature = option.removeprefix("HVD_WITH_")
            self.assertRegex(known, rf"\b{option}\b|foreach\(feature .*\b{feature}\b")

    def test_the_run_time_packages_hold_what_the_program_links_and_loads(self) -> None:
        program = Path(os.environ.get("HVD_BENCH", "hvd_bench"))
        if not program.is_file() or not shutil.which("dpkg") or "bookworm" not in Path("/etc/os-release").read_text():
            self.skipTest("needs the program, built on Debian 12")
        linked = execute("ldd", program, check=True).stdout
        installed = next(argument for name, argument in self.steps if name == "RUN" and "libdnnl" in argument)
        for library, package in (
            ("libdnnl.so.2", "libdnnl2"),
            ("libfmt.so", "libfmt9"),
            ("libsqlite3.so", "libsqlite3-0"),
        ):
            if library in linked:
                self.assertIn(package, installed)
        self.assertIn("openmpi-bin", installed)  # the program loads MPI, and is linked with none

    def test_the_build_folder_stays_out_and_git_goes_in(self) -> None:
        ignored = (RECIPES / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
        self.assertIn("build", ignored)
        self.assertFalse([line for line in ignored if line.startswith(".git")], "the commit is provenance")


class ApptainerTest(unittest.TestCase):
    def setUp(self) -> None:
        self.parts = sections(RECIPES / "hvd_bench.def")

    def test_two_stages(self) -> None:
        headers = [body for name, body in self.parts if name == "header"]
        self.assertEqual([re.search(r"Stage: (\w+)", body)[1] for body in headers], ["build", "final"])

    def test_files_are_there_and_enough_to_build(self) -> None:
        copied = [line.split() for line in script_lines(dict(self.parts)["files"])]
        for source, target in copied:
            self.assertTrue((REPOSITORY / source).exists() or source == ".git", source)
            self.assertEqual(target, f"/src/{source}")
        listed = {source for source, _ in copied}
        top = set(re.findall(r"add_subdirectory\((\w+)\)", (REPOSITORY / "CMakeLists.txt").read_text(encoding="utf-8")))
        self.assertLessEqual(top - {"tests"} | {"cmake", "results", "scripts", "slurm", "LICENSE"}, listed)

    def test_shell_sections_parse(self) -> None:
        for name, body in self.parts:
            if name in ("post", "environment", "test", "runscript"):
                self.assertEqual(subprocess.run(["sh", "-n", "-c", body], check=False).returncode, 0, name)

    def test_it_does_what_the_dockerfile_does(self) -> None:
        posts = [script_lines(body) for name, body in self.parts if name == "post"]
        docker = [
            " ".join(argument.split()) for name, argument in instructions(RECIPES / "Dockerfile") if name == "RUN"
        ]
        self.assertEqual(posts[0][3:], docker[:5])
        installed = next(argument for argument in docker if "apt-get install" in argument)
        steps = [part.strip().replace(" openssh-server", "") for part in installed.split("&&")]
        self.assertEqual(posts[1][1:], [*steps, next(argument for argument in docker if "ldconfig" in argument)])
        bases = {re.search(r"From: (\S+)", body)[1] for name, body in self.parts if name == "header"}
        first = next(argument for name, argument in instructions(RECIPES / "Dockerfile") if name == "ARG")
        self.assertEqual(bases, {first.split("=")[1]})


class MpiJobTest(unittest.TestCase):
    def setUp(self) -> None:
        try:
            import yaml
        except ModuleNotFoundError:
            self.skipTest("needs PyYAML")
        self.job = yaml.safe_load((RECIPES / "mpijob.yaml").read_text(encoding="utf-8"))
        self.spec = self.job["spec"]
        self.pods = {name: r["template"]["spec"] for name, r in self.spec["mpiReplicaSpecs"].items()}

    def test_ranks_are_slots_times_workers(self) -> None:
        (launcher,) = self.pods["Launcher"]["containers"]
        words = [*launcher["command"], *launcher["args"]]
        ranks = int(words[words.index("-n") + 1])
        self.assertEqual(ranks, self.spec["slotsPerWorker"] * self.spec["mpiReplicaSpecs"]["Worker"]["replicas"])
        threads = int(words[words.index("--threads") + 1])
        (worker,) = self.pods["Worker"]["containers"]
        self.assertEqual(int(worker["resources"]["limits"]["cpu"]), threads * self.spec["slotsPerWorker"])
        self.assertEqual(worker["resources"]["limits"], worker["resources"]["requests"])

    def test_the_digest_is_that_of_the_image_and_reaches_the_ranks(self) -> None:
        (launcher,), (worker,) = (pod["containers"] for pod in self.pods.values())
        digest = {entry["name"]: entry["value"] for entry in launcher["env"]}["HVD_IMAGE_DIGEST"]
        self.assertEqual({launcher["image"], worker["image"], digest}, {digest})
        self.assertRegex(digest, r"@sha256:[0-9a-f]{64}$")
        self.assertIn("HVD_IMAGE_DIGEST", launcher["args"][launcher["args"].index("-x") + 1])

    def test_it_fits_the_image(self) -> None:
        sshd = (RECIPES / "sshd_config").read_text(encoding="utf-8")
        (worker,) = self.pods["Worker"]["containers"]
        self.assertIn(f"Port {worker['readinessProbe']['tcpSocket']['port']}\n", sshd)
        self.assertIn(f"HostKey {self.spec['sshAuthMountPath']}/id_ecdsa", sshd)
        self.assertIn(
            worker["args"][-1],
            dict(reversed(instructions(RECIPES / "Dockerfile")))["COPY"] + " /home/bench/.sshd_config",
        )
        mounts = {mount["mountPath"] for mount in worker["volumeMounts"]}
        self.assertEqual(mounts, {"/dev/shm", "/results"})

    def test_the_ssh_server_accepts_its_configuration(self) -> None:
        if not Path("/usr/sbin/sshd").exists() or not shutil.which("ssh-keygen"):
            self.skipTest("needs openssh-server")
        with tempfile.TemporaryDirectory() as scratch:
            key = Path(scratch) / "id_ecdsa"
            subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-N", "", "-f", key], check=True)
            text = (RECIPES / "sshd_config").read_text(encoding="utf-8")
            config = Path(scratch) / "config"
            config.write_text(text.replace("/home/bench/.ssh/id_ecdsa", str(key)), encoding="utf-8")
            done = execute("/usr/sbin/sshd", "-t", "-f", config)
            self.assertNotRegex(done.stderr, "Bad configuration|Unsupported option|no argument")


class TrainJobTest(unittest.TestCase):
    def setUp(self) -> None:
        try:
            import yaml
        except ModuleNotFoundError:
            self.skipTest("needs PyYAML")
        self.runtime, self.job = yaml.safe_load_all((RECIPES / "trainjob.yaml").read_text(encoding="utf-8"))
        self.trainer = self.job["spec"]["trainer"]
        jobs = self.runtime["spec"]["template"]["spec"]["replicatedJobs"]
        self.jobs = {job["name"]: job for job in jobs}
        self.pods = {name: job["template"]["spec"]["template"]["spec"] for name, job in self.jobs.items()}

    def test_the_job_is_of_this_runtime_and_as_large(self) -> None:
        reference = self.job["spec"]["runtimeRef"]
        self.assertEqual(reference["name"], self.runtime["metadata"]["name"])
        self.assertEqual(f"{reference['apiGroup']}/v1alpha1", self.runtime["apiVersion"])
        policy = self.runtime["spec"]["mlPolicy"]
        self.assertEqual(policy["numNodes"], self.trainer["numNodes"])
        self.assertEqual(policy["mpi"]["numProcPerNode"], self.trainer["numProcPerNode"])
        words = self.trainer["args"]
        self.assertEqual(int(words[words.index("-n") + 1]), policy["numNodes"] * policy["mpi"]["numProcPerNode"])
        threads = int(words[words.index("--threads") + 1])
        for pod in self.pods.values():
            ((container),) = pod["containers"]
            self.assertEqual(container["name"], "node", "where the operator mounts the keys")
            self.assertEqual(int(container["resources"]["limits"]["cpu"]), threads * policy["mpi"]["numProcPerNode"])
            self.assertEqual({mount["mountPath"] for mount in container["volumeMounts"]}, {"/dev/shm", "/results"})

    def test_the_job_reaches_the_launcher_and_its_digest_is_that_of_the_image(self) -> None:
        label = "trainer.kubeflow.org/trainjob-ancestor-step"
        marked = [
            name for name, job in self.jobs.items() if label in job["template"].get("metadata", {}).get("labels", {})
        ]
        self.assertEqual(marked, ["launcher"])
        images = {pod["containers"][0]["image"] for pod in self.pods.values()}
        digest = {entry["name"]: entry["value"] for entry in self.trainer["env"]}["HVD_IMAGE_DIGEST"]
        self.assertEqual(images, {digest})
        self.assertIn("HVD_IMAGE_DIGEST", self.trainer["args"][self.trainer["args"].index("-x") + 1])

    def test_the_image_finds_the_keys(self) -> None:
        folder = self.runtime["spec"]["mlPolicy"]["mpi"]["sshAuthMountPath"]
        sshd = (RECIPES / "sshd_config").read_text(encoding="utf-8")
        self.assertIn(f"HostKey {folder}/id_rsa\n", sshd)
        self.assertIn(f"AuthorizedKeysFile {folder}/authorized_keys\n", sshd)


class PyxisTest(FolderTest):
    """srun is a stand-in that prints its arguments."""

    def submit(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        executable(self.folder / "bin" / "srun", '#!/bin/sh\nprintf "%s\\n" "$HVD_IMAGE_DIGEST" "$@"\n')
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        known = {"PATH": path, "SLURM_JOB_ID": "7", "SLURM_CPUS_PER_TASK": "8"}
        return execute("bash", RECIPES / "pyxis.sbatch", *arguments, env=known, cwd=self.folder)

    def test_every_rank_runs_in_the_image_and_knows_its_digest(self) -> None:
        image = self.folder / "hvd_bench.sqsh"
        image.write_bytes(b"an image")
        done = self.submit("--model", "vgg16")
        self.assertEqual(done.returncode, 0, done.stderr)
        digest, *words = done.stdout.splitlines()
        self.assertEqual(digest, f"sha256:{hashlib.sha256(b'an image').hexdigest()}")
        self.assertIn(f"--container-image={image}", words)
        self.assertIn("--mpi=pmix", words)
        program = words[words.index("hvd_bench") :]
        self.assertEqual(program, ["hvd_bench", "--efficiency", "--db", "/results/hvd_bench-7.db", "--model", "vgg16"])

    def test_without_an_image_nothing_starts(self) -> None:
        done = self.submit()
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("HVD_IMAGE", done.stderr)


class ModulefileTest(FolderTest):
    def module(self, prefix: Path | None, commands: str) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
        if prefix is not None:
            environment["HVD_BENCH_PREFIX"] = str(prefix)
        script = f"source {MODULES} && module use {RECIPES / 'modulefiles'} && {commands}"
        return execute("bash", "-c", script, env=environment)

    def setUp(self) -> None:
        super().setUp()
        executable(self.folder / "bin" / "hvd_bench", "#!/bin/sh\necho it is me\n")

    def test_it_is_named_after_the_version(self) -> None:
        version, _, _ = hvdb.__version__.partition(".dev")
        self.assertEqual([p.name for p in (RECIPES / "modulefiles" / "hvd_bench").iterdir()], [version])

    @unittest.skipUnless(MODULES, "needs environment-modules")
    def test_load_and_unload(self) -> None:
        done = self.module(
            self.folder,
            'before=$PATH; module load hvd_bench && hvd_bench && echo "$HVD_BENCH_ROOT" && module list -t && '
            'module unload hvd_bench && [ "$PATH" = "$before" ] && [ -z "${HVD_BENCH_ROOT:-}" ] && echo clean',
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.split("\n")[:2], ["it is me", str(self.folder)])
        self.assertIn("clean", done.stdout)
        self.assertIn("hvd_bench/0.2.0", done.stdout + done.stderr)

    @unittest.skipUnless(MODULES, "needs environment-modules")
    def test_a_wrong_prefix_is_said_and_nothing_is_loaded(self) -> None:
        done = self.module(
            self.folder / "nowhere", 'before=$PATH; module load hvd_bench; [ "$PATH" = "$before" ] && echo same'
        )
        self.assertIn("no program at", done.stdout + done.stderr)
        self.assertIn("same", done.stdout)


class SpackTest(unittest.TestCase):
    """Compares the package with the build. There is no Spack to load it with."""

    def test_the_package_is_python_and_its_options_and_cmake_are_those_of_the_build(self) -> None:
        path = RECIPES / "spack" / "spack_repo" / "hvd_bench" / "packages" / "hvd_bench" / "package.py"
        text = path.read_text(encoding="utf-8")
        compile(text, str(path), "exec")
        known = (REPOSITORY / "cmake" / "Options.cmake").read_text(encoding="utf-8")
        features = re.search(r"foreach\(feature ([A-Z_ ]+)\)", known)[1].split()
        options = re.findall(r"option\((HVD_\w+) ", known) + [f"HVD_WITH_{feature}" for feature in features]
        self.assertLessEqual(set(re.findall(r'"(HVD_\w+)"', text)), set(options))
        minimum = re.search(r"cmake_minimum_required\(VERSION (\S+)\)", (REPOSITORY / "CMakeLists.txt").read_text())[1]
        self.assertIn(f'depends_on("cmake@{minimum}:"', text)


def gate_command(text: str) -> list[str]:
    """Returns the words of a CI recipe's call of scripts/gate, with HEAD for every variable."""
    # In Groovy a backslash is written twice.
    text = text.replace("\\\\\n", "\\\n").replace("\\\n", " ")
    lines = text.splitlines()
    first = next(number for number, line in enumerate(lines) if "scripts/gate " in line)
    call = lines[first]
    for line in lines[first + 1 :]:
        if not line.strip().startswith("--"):
            break
        call += f" {line.strip()}"
    call = re.sub(r"\$[A-Z_]+", "HEAD", call.partition("scripts/gate ")[2].partition("||")[0])
    return shlex.split(call.replace("origin/HEAD", "HEAD"))


class ContinuousIntegrationTest(unittest.TestCase):
    FILES = ("github.yml", "gitlab-ci.yml", "Jenkinsfile")

    def test_the_three_give_the_same_gate_and_it_can_run(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "verdict").mkdir()
            for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "one"]):
                subprocess.run(
                    ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", *words], cwd=folder, check=True
                )
            plans = []
            for name in self.FILES:
                words = gate_command((RECIPES / "ci" / name).read_text(encoding="utf-8"))
                done = execute(SCRIPTS / "gate", *words, "--dry-run", cwd=folder, code=0)
                plans.append(done.stderr)
            self.assertIn("cell vgg16: ", plans[0])
            self.assertEqual(plans, [plans[0]] * 3)

    def test_what_a_stranger_writes_reaches_no_shell(self) -> None:
        """GitHub replaces ${{ }} in a script by plain text, so the name of a branch could become code."""
        text = (RECIPES / "ci" / "github.yml").read_text(encoding="utf-8")
        for script in re.findall(r"run: (?:\|\n((?: {10,}.*\n)+)|(.*)\n)", text):
            self.assertNotIn("${{", "".join(script))
