"""Tests the command line: help, bad input, and printed output."""

import json
import os
import pathlib
import shutil
import subprocess
import unittest

from program import (
    HANG,
    MPIRUN,
    NETWORK,
    PROGRAM,
    TINY,
    TRAINING,
    ProgramTest,
    environment,
    execute,
    mpirun,
    needs_mpi,
    query,
    run,
)

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
MODULES = pathlib.Path(PROGRAM).resolve().parents[1] / "lib" / "hvd_bench"
ON_MPICH = shutil.which("mpiexec.mpich") if (MODULES / "hvd_mpi_mpich.so").exists() else None
# A training that is as short as can be.
ONE_STEP = [*TRAINING, "--num-warmup-batches", "0", "--num-iters", "1"]


class Help(ProgramTest):
    def test_the_committed_options_are_those_of_the_program(self) -> None:
        """After a change of an option: hvd_bench --describe-options > results/options.json."""
        committed = (REPOSITORY / "results/options.json").read_text(encoding="utf-8")
        self.assertEqual(execute([PROGRAM, "--describe-options"]).ended_with(0).out, committed)

    def test_version(self) -> None:
        result = run("--version").ended_with(0)
        version = r"\d+\.\d+\.\d+(?:\.dev\d+)?"
        self.assertRegex(result.out, rf"\Ahvd_bench {version} \(commit ([0-9a-f]{{10}}|unknown)[ a-z,]*\)\n\Z")

    def test_a_reader_may_close_the_pipe(self) -> None:
        for question in (["--help"], ["coll", "--help"], ["--version"], ["doctor", "--db", str(self.db)]):
            reader, writer = os.pipe()
            os.close(reader)
            done = subprocess.run(
                [PROGRAM, *question],
                stdout=writer,
                stderr=subprocess.PIPE,
                env=environment(),
                timeout=HANG,
                check=False,
            )
            os.close(writer)
            self.assertEqual((done.returncode, done.stderr), (0, b""), question)
        with pathlib.Path("/dev/full").open("w") as full:
            done = subprocess.run([PROGRAM, "--help"], stdout=full, stderr=subprocess.PIPE, timeout=HANG, check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn(b"standard output cannot be written (No space left on device)", done.stderr)

    def test_doctor(self) -> None:
        result = run("doctor", "--db", str(self.db)).ended_with(0)
        for subject in ("processor", "oneDNN fp32", "memory copy", "/dev/shm", "launcher", "store"):
            self.assertIn(subject, result.out)
        self.assertEqual(list(self.folder.iterdir()), [], "doctor leaves nothing behind")

    @needs_mpi
    def test_doctor_says_how_root_allows_itself_open_mpi(self) -> None:
        self.assertNotIn("OMPI_ALLOW_RUN_AS_ROOT", run("doctor").out)
        out = run("doctor", env={"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "0"}).out
        told = "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1" in out
        self.assertEqual(told, os.geteuid() == 0 and "Open MPI" in out, out)

    @needs_mpi
    def test_doctor_survives_an_mpi_that_does_not(self) -> None:
        result = run("doctor", env={"OMPI_MCA_pml": "nosuch"}).ended_with(1)
        self.assertRegex(result.out, "FAULT +MPI +MPI_Init ended the process")
        for subject in ("processor", "memory copy", "launcher"):
            self.assertIn(subject, result.out)

    @needs_mpi
    def test_doctor_speaks_once_per_host(self) -> None:
        result = execute([str(MPIRUN), "-n", "2", PROGRAM, "doctor"]).ended_with(0)
        self.assertEqual(result.out.count("launcher"), 1, result)
        self.assertEqual(result.out.count("starts, world of 2"), 1, result)


class BadInput(ProgramTest):
    """Refusals as a user meets them, and those that need a launch. tests/bench/cli and tests/bench/world have the rest:
    cli_options_test, launch_test and gpu_choice_test."""

    def test_unknown_option(self) -> None:
        self.refused(run("--batchsize", "4"), 2, "--batchsize: there is no such option", "did you mean --batch-size?")

    def test_absurd_batch(self) -> None:
        line = self.refused(run("--model", "resnet101", "--batch-size", "65536"), 8, "batch")
        self.assertRegex(line, r"(GB|GiB|TB|TiB)")

    def test_bf16_where_the_processor_lacks_it(self) -> None:
        env = {"ONEDNN_MAX_CPU_ISA": "AVX2", "DNNL_MAX_CPU_ISA": "AVX2"}
        self.refused(run(*ONE_STEP, "--dtype", "bf16", env=env), 2, "bf16")

    def test_without_a_gpu_auto_says_why_the_cpu(self) -> None:
        result = run(*ONE_STEP, env={"CUDA_VISIBLE_DEVICES": ""}).ended_with(0)
        self.assertEqual(result.out.count("computing on the CPU: "), 1, result)
        result = run(*ONE_STEP, "--device", "cpu")
        self.assertEqual((result.code, result.out.count("computing on the CPU")), (0, 0), result)

    def test_on_one_node_16_bits_round_nothing(self) -> None:
        result = run(*ONE_STEP, "--device", "cpu", "--ranks", "2", "--fp16-allreduce").ended_with(0)
        self.assertIn("of gradients in fp32, fp16 between nodes, of which there is one\n", result.out)

    @needs_mpi
    def test_of_several_ranks_one_says_why_the_cpu(self) -> None:
        result = mpirun(2, *ONE_STEP, env={"CUDA_VISIBLE_DEVICES": ""}).ended_with(0)
        self.assertEqual((result.out + result.err).count("computing on the CPU: "), 1, result)

    def test_settings_that_the_schedule_does_not_use(self) -> None:
        given = {"HOROVOD_FUSION_THRESHOLD": "67108864", "HOROVOD_CYCLE_TIME": "5"}
        line = [*TINY, "--ranks", "2", "--fusion-threshold-mb", "128", "--bucket-mb", "25"]
        result = run(*line, env=given).ended_with(0)
        for unused in ("--fusion-threshold-mb", "HOROVOD_CYCLE_TIME"):
            said = f"{unused} has no effect: --schedule static does not use it, --schedule negotiated does"
            self.assertIn(said, result.out)
        self.assertEqual(result.out.count("has no effect"), 2, result)
        result = run(*line, "--schedule", "negotiated", env=given).ended_with(0)
        self.assertIn("--bucket-mb has no effect: --schedule negotiated does not use it", result.out)
        self.assertEqual(result.out.count("has no effect"), 1, result)

    def test_vectors_that_are_not_known(self) -> None:
        for command in ((*TINY,), ("doctor",), ("coll", "-b", "1K", "-e", "1K")):
            self.refused(run(*command, env={"HVD_MAX_CPU_ISA": "AVX3"}), 2, "HVD_MAX_CPU_ISA", "'AVX3'", "AVX2")
        run("--version", env={"HVD_MAX_CPU_ISA": "AVX3"}).ended_with(0)

    def test_the_model_of_a_replay_is_that_of_the_file(self) -> None:
        profile = self.folder / "gpt2.replay"
        text = (REPOSITORY / "tests/cli/sleep.replay").read_text(encoding="utf-8")
        profile.write_text(text.replace("model resnet50", "model gpt2"), encoding="utf-8")
        words = ("--replay", str(profile), "--num-iters", "1", "--num-warmup-batches", "1", "--no-db")
        self.assertIn("gpt2", run(*words, "--model", "gpt2").ended_with(0).out)
        self.refused(run(*words, "--model", "resnet50_v1.5"), 2, "--model resnet50 contradicts", "recorded with gpt2")


class Launch(ProgramTest):
    def test_a_step_without_pmix(self) -> None:
        step = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0"}
        self.refused(run(*TINY, env={**step, "SLURM_PROCID": "0"}), 2, "SLURM_STEP_NUM_TASKS=4", "srun --mpi=pmix")
        other = run(*TINY, env={**step, "SLURM_PROCID": "2"})
        self.assertEqual((other.code, other.err), (2, ""), "rank 0 says it for all")

    @needs_mpi
    def test_a_rank_that_is_not_mpis(self) -> None:
        command = ["env", "OMPI_COMM_WORLD_RANK=1", PROGRAM, *TINY, "--no-db"]
        result = execute([str(MPIRUN), "-n", "2", *command]).ended_with(2)
        self.assertNotEqual(result.errors, [], result)
        for line in result.errors:  # both ranks may report it, because the variable also decides which rank prints
            self.assertIn("OMPI_COMM_WORLD_RANK=1 of a process that is rank 0 in MPI", line)

    @needs_mpi
    def test_a_usage_error_is_said_once(self) -> None:
        self.refused(mpirun(3, "--model", "resnet102"), 2, "resnet102")
        self.refused(mpirun(2, "--device", "cuda"), 2, "--device cuda")

    @needs_mpi
    def test_an_mpi_that_cannot_be_used_is_named_in_one_line(self) -> None:
        absent, cause = str(self.folder / "libmpi.so"), "cannot open shared object file"
        for wanted, said in (
            (absent, f"HVD_MPI={absent}: {absent}: {cause}"),
            ("lam", f"HVD_MPI=lam: lam: {cause}"),
            (os.environ["HVD_MPI_NONE"], "is no MPI library, because it has no MPI_Init_thread"),
            (os.environ["HVD_MPI_PARTIAL"], "undefined symbol: "),
        ):
            for words in (TINY, ["coll", "-b", "8", "-e", "8"]):
                result = run(*words, "--comm", "mpi", env={"HVD_MPI": wanted})
                self.refused(result, 2, said)
        self.assertIn(said, run("doctor", env={"HVD_MPI": wanted}).ended_with(1).out)
        run(*TINY, "--no-db", env={"HVD_MPI": absent}).ended_with(0)  # one rank needs no MPI

    @needs_mpi
    def test_a_launcher_of_one_mpi_with_the_library_of_another(self) -> None:
        if not ON_MPICH:
            self.skipTest("needs MPICH and the module for it")
        for launcher, wanted, library in ((str(MPIRUN), "mpich", "MPICH"), (ON_MPICH, "openmpi", "Open MPI")):
            result = execute([launcher, "-n", "2", PROGRAM, *TINY, "--no-db"], {"HVD_MPI": wanted})
            self.assertEqual(result.code, 2, result)
            text = "\n".join(result.errors)
            self.assertRegex(text, f"2 processes were started together, but {library}[^\n]* separate")

    @needs_mpi
    def test_the_launcher_says_which_mpi_it_starts(self) -> None:
        for launcher, library in ((str(MPIRUN), "Open MPI"), (ON_MPICH, "MPICH")):
            if not launcher:
                continue
            store = self.folder / f"{library[:2]}.db"
            execute([launcher, "-n", "2", PROGRAM, *TINY, "--db", str(store)]).ended_with(0)
            stored = dict(
                query("SELECT key, value FROM provenance WHERE key LIKE '%.library' OR key LIKE '%.mpi'", store)
            )
            self.assertTrue(stored["comm.library"].startswith(library), stored)
            self.assertIn(stored["lib.file.mpi"], stored["lib.path.mpi"])


class Output(ProgramTest):
    def test_alone_with_both_spellings(self) -> None:
        words = "--num_iters=3 --num_warmup_batches 1 --batch_size 2 --image_size 32 --model vgg16 --classes 10"
        result = run(*words.split(), "--threads", "1", "train").ended_with(0)
        self.assertEqual(len(self.totals(result)), 1, result)
        self.assertIn("vgg16, batch 2 per rank, images 32 x 32", result.out)
        self.assertIn("95 % interval", result.out)

    def test_a_profile_is_shown(self) -> None:
        result = run(*TRAINING, "--profile", "--device", "cpu").ended_with(0)
        self.assertRegex(result.out, r"(?m)^operations on rank 0, per step\n +count +measured ms +per cent +operation$")

    def test_a_replay_of_another_unit_of_work(self) -> None:
        """A profile of a language model counts sequences, and its network has no images."""
        profile = self.folder / "bert.replay"
        head = "model bert\nunit sequences\nunits_per_step 8\ndevice none\ncompute_type fp32\nsource_run none\n"
        times = "backward_end_seconds 0.02\nupdate_seconds 0.001\nfactors 1 1.5 0.75\n"
        profile.write_text(f"hvd-replay 2\n{head}{times}gradient 100 0.01 0.01 w\nend 1\n")
        words = ["--replay", str(profile), "--num-iters", "3", "--num-warmup-batches", "1", "--db", str(self.db)]
        result = run(*words).ended_with(0)
        self.assertRegex(result.out, r"(?m)^  replaying  bert, 8 sequences a step per rank, fp32 on replay$")
        self.assertRegex(result.out, r"(?m)^ +ranks sequences/s ")
        self.assertRegex(result.out, r"(?m)^total sequences/sec: \d+\.\d\d$")
        self.assertEqual(self.query("SELECT value FROM provenance WHERE key = 'work.unit'"), [("sequences",)])
        self.assertEqual(self.query("SELECT batch_size, image_size FROM run"), [(8, 0)])
        document = json.loads(run(*words[:-2], "--json").ended_with(0).out)
        self.assertEqual([r["unit"] for r in document["runs"]], ["sequences"])

    def test_an_entry_of_the_environment_without_a_name_is_ignored(self) -> None:
        result = execute([PROGRAM, "--version"], {"": "x"}).ended_with(0)
        self.assertEqual(result.err, "")

    def test_quiet(self) -> None:
        result = run(*TINY, "--quiet").ended_with(0)
        self.assertRegex(result.out, r"\Atotal images/sec: \d+\.\d\d\n\Z")
        self.assertEqual(result.err, "")

    def test_verbose_explains_the_figures_and_the_store_has_the_explanations_in_any_case(self) -> None:
        words, other = [*TINY, "--ranks", "2", "--efficiency", "--db"], self.folder / "verbose.db"
        usual = run(*words, str(self.db)).ended_with(0).out
        verbose = run(*words, str(other), "--verbose").ended_with(0).out
        for key in ("memory", "exposed_communication", "efficiency", "full_minus_none", "independent", "warm_up"):
            stored = f"SELECT value FROM provenance WHERE key = 'measurement.{key}'"
            self.assertNotIn(self.query(stored)[0][0], usual)
            self.assertIn(f"note        {query(stored, other)[0][0]}\n", verbose)
        self.assertRegex(usual, r"\nloses most  .+\n")
        fingerprint = "SELECT fingerprint FROM run WHERE phase = 'full'"
        self.assertEqual(self.query(fingerprint), query(fingerprint, other))

    def test_every_vector_level_computes_the_same_bits(self) -> None:
        residual = ["--model", "resnet50", "--image-size", "64", "--batch-size", "2", "--threads", "1", "--ranks", "2"]
        command = [*residual, "--num-iters", "2", "--device", "cpu", "--num-warmup-batches", "0", "--no-db", "--json"]
        for dtype in ("fp32", "bf16"):
            checks = set()
            for level in ("SSE2", "AVX2", "AVX512"):
                result = run(*command, "--dtype", dtype, env={"HVD_MAX_CPU_ISA": level})
                if dtype == "bf16" and result.code == 2:
                    self.assertIn("bf16", result.err)
                    continue  # this processor cannot compute in bf16
                checks.add(json.loads(result.ended_with(0).out)["runs"][0]["checks"])
            self.assertLessEqual(len(checks), 1, f"{dtype}: {checks}")
            self.assertTrue(checks or dtype == "bf16")

    def test_json(self) -> None:
        result = run(*TRAINING, "--json", "--db", str(self.db)).ended_with(0)
        document = json.loads(result.out, parse_constant=lambda text: self.fail(f"{text} is not JSON"))
        (measured,) = document["runs"]
        self.assertEqual(measured["model"], "vgg16")
        self.assertEqual(measured["status"], "complete")
        self.assertEqual(measured["measured_steps"], 3)
        self.assertEqual(document["total_images_per_second"], measured["images_per_second"])
        self.assertIn("cpu.model", measured["provenance"])
        self.assertEqual(self.query("SELECT uuid, fingerprint FROM run"), [(measured["uuid"], measured["fingerprint"])])

    @needs_mpi
    def test_total_once_under_mpirun(self) -> None:
        result = mpirun(2, *TRAINING).ended_with(0)
        self.assertEqual(len(self.totals(result)), 1, result)
        self.assertIn("2 ranks, 1 host", result.out)

    @needs_mpi
    def test_efficiency(self) -> None:
        result = mpirun(2, *TINY, "--efficiency", "--db", str(self.db)).ended_with(0)
        self.assertIn("where a step goes", result.out)
        self.assertEqual(
            self.query("SELECT group_concat(phase) FROM (SELECT phase FROM run ORDER BY phase)"), [("full,none,solo",)]
        )
        (total,) = self.query("SELECT sum(fraction) FROM decomposition")[0]
        self.assertAlmostEqual(total, 1, places=9)

    @needs_mpi
    def test_fit_lowers_the_batch_before_it_measures(self) -> None:
        # A sample of so many steps fits nowhere, so the smallest batch is taken and nothing is measured.
        long = [*NETWORK, "--num-warmup-batches", "2", "--num-batches-per-iter", "100000", "--max-time", "60"]
        result = mpirun(2, *long, "--efficiency", "--fit").ended_with(3)
        self.assertIn("batch 2 per rank or fewer (--fit)", result.out)
        self.assertRegex(
            result.out, r"\n  fit        vgg16 takes [0-9.]+ m?s a step here with batch 2: batch 1, images 32 x"
        )
        self.assertIn(", images 32 x 32, learning rate 0.005\n", result.out)
        self.assertEqual(len(result.errors), 1, result)
        self.assertIn("too few rounds would fit for an interval: vgg16 takes ", result.errors[0])
        self.assertNotIn("where a step goes", result.out)

    @needs_mpi
    def test_the_stored_command_line_runs_again(self) -> None:
        mpirun(2, *TINY, "--db", str(self.db)).ended_with(0)
        ((line,),) = self.query("SELECT command_line FROM session")
        execute(["sh", "-c", line]).ended_with(0)
        rows = self.query("SELECT world_size, fingerprint FROM run")
        self.assertEqual(len(rows), 2)
        self.assertEqual(rows[0], rows[1], "comparable")


if __name__ == "__main__":
    print("program:", PROGRAM)
    unittest.main(verbosity=2)
