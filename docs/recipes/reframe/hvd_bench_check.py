"""hvd_bench in ReFrame 4: trains a network on synthetic images, checks it, and compares it with earlier sessions.

    reframe -C SITE.py -c hvd_bench_check.py -r --performance-report \\
        -P model=resnet101 -P ranks=8 -S ranks_per_node=4 -S baseline=/shared/nightly.db

hvd_bench must be on the PATH of the jobs, hvdb (pip install ./scripts) on that of ReFrame. Every figure comes from the
store that the run leaves in its stage folder. The reference is not a percentage that somebody chose: it ends where the
prediction interval of the earlier sessions in `baseline` ends, or at `threshold` percent below their median, whichever
is lower (docs/history.md); it needs 19 sessions, and without it the figures are only reported. A check never writes
into the baseline. Add its session afterwards, whatever the result was, because leaving slow ones out would void the
error rates:

    hvdb merge -o /shared/nightly.db .../runs.db      # kept in ReFrame's output folder
"""

import json
import os

import reframe as rfm
import reframe.utility.osext as osext
import reframe.utility.sanity as sn
from reframe.core.builtins import parameter, run_after, run_before, sanity_function, variable
from reframe.core.exceptions import SanityError

VERDICTS = (0, 1, 3)  # exit codes of hvdb history: PASS, REGRESSION, INCONCLUSIVE


@rfm.simple_test
class hvd_bench_check(rfm.RunOnlyRegressionTest):
    """Names of variables and of the throughputs are those of ReFrame's own check of Horovod."""

    model = parameter(["inception3", "resnet101", "vgg16"], type=str, loggable=True)
    ranks = parameter([2], type=int, loggable=True)
    schedule = parameter(["static"], type=str, loggable=True)

    ranks_per_node = variable(int, value=1)
    batch_size = variable(int, value=32)  # of a rank
    num_iters = variable(int, value=20)  # samples
    num_batches_per_iter = variable(int, value=1)
    num_warmup_batches = variable(int, value=5)
    replay = variable(str, value="")  # a recorded step to play back in place of `model`
    options = variable(str, value="")  # more options of hvd_bench
    baseline = variable(str, value="")  # store with the earlier sessions
    threshold = variable(float, value=2.0)  # tolerated slowdown, in percent
    mpi = variable(str, value="pmix")  # of srun

    valid_systems = ["*"]
    valid_prog_environs = ["*"]
    executable = "hvd_bench"
    keep_files = ["runs.db"]
    maintainers = ["hvd_bench"]
    tags = {"ml", "cnn", "horovod"}

    @run_after("init")
    def describe(self):
        self.descr = f"hvd_bench: {self.replay or self.model} on {self.ranks} ranks, {self.schedule}"

    @run_before("run")
    def prepare(self):
        self.num_tasks = self.ranks
        self.num_tasks_per_node = min(self.ranks, self.ranks_per_node)
        if self.job.launcher.registered_name == "srun":
            self.job.launcher.options = [f"--mpi={self.mpi}"]
        work = ["--replay", self.replay] if self.replay else ["--model", self.model, "--batch-size", self.batch_size]
        words = [*work, "--schedule", self.schedule, "--efficiency", "--db", "runs.db", "--num-iters", self.num_iters]
        words += ["--num-batches-per-iter", self.num_batches_per_iter, "--num-warmup-batches", self.num_warmup_batches]
        self.executable_opts = [*map(str, words), *self.options.split()]

    def hvdb(self, *words, codes=(0,)):
        done = osext.run_command(["hvdb", *words], timeout=300)
        if done.returncode not in codes:
            raise SanityError(f"hvdb {words[0]}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def file(self, name):
        return os.path.join(self.stagedir, name)

    def trained(self):
        """Returns the line of the run of all ranks."""
        lines = map(json.loads, self.hvdb("export", self.file("runs.db"), "--jsonl", "-").splitlines())
        return next((line for line in lines if line["phase"] == "full"), None)

    @sanity_function
    def ended_well(self):
        """hvd_bench itself compares gradients and weights. If they are wrong its exit code is not 0, and the run is not
        complete. ReFrame knows no exit code from its scheduler squeue, for Slurm without accounting."""
        self.line = self.trained()
        return sn.all(
            [
                sn.assert_in(self.job.exitcode, (0, None), "hvd_bench ended with exit code {0}"),
                sn.assert_true(self.line, "the store has no run"),
                sn.assert_eq(self.line and self.line["status"], "complete"),
                sn.assert_eq(self.line and self.line["ranks"], self.ranks),
                sn.assert_true(self.line and self.line["checks"], "the run has checked nothing"),
            ]
        )

    @run_before("performance")
    def measure(self):
        """Names the figures. The unit of work is that of the network or of the replay."""
        per_second, total = f"{self.line['unit']}/s", self.line["units_per_second"]
        figures = {"throughput_total": (total, per_second), "throughput_iteration": (total / self.ranks, per_second)}
        reached = [self.line[f"efficiency_ratio{end}"] for end in ("", "_low", "_high")]
        if None not in reached[1:]:  # the middle of its interval if it is not resolved
            middle = sum(reached[1:]) / 2 if reached[0] is None else reached[0]
            figures["efficiency"] = (100 * middle, "%")
        self.perf_variables = {
            name: sn.make_performance_function(sn.defer(value), unit) for name, (value, unit) in figures.items()
        }
        if self.baseline and os.path.exists(self.baseline):  # the first session makes it
            self.refer(per_second)

    def refer(self, unit):
        words = ["--new", self.file("runs.db"), "--json", self.file("history.json"), "--threshold", str(self.threshold)]
        self.hvdb("history", self.baseline, *words, codes=VERDICTS)
        with open(self.file("history.json"), encoding="utf-8") as file:
            (found,) = (one for one in json.load(file)["series"] if one["judgement"])
        judgement = found["judgement"]
        low, median = judgement["prediction_interval"][0], judgement["median"]
        if low is not None:
            lowest = min(low, median / (1 + self.threshold / 100))
            reference = (median, lowest / median - 1, None, unit)
            self.reference = {self.current_system.name: {"throughput_total": reference}}
