"""Reads the command line of a stored run. Uses only listed words, since a stranger may have stored it.

bench/store/provenance.cpp writes: [cd FOLDER &&] [env NAME=value ...] [launcher and its options] hvd_bench options.
parse() takes the variables in this module's lists, and those options of hvd_bench whose row in results/options.json
says what a rerun does with them. No option or variable that is taken can name a file. The launcher is only shown. The
person who runs the command again names the launcher, the program and all files. The command runs without a shell.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from hvdb.base import data
from hvdb.base.errors import HvdbError

PROGRAM = data.BENCH
TRACE_VARIABLE = "HOROVOD_TIMELINE"

# Environment variables that parse() takes. Each of them tunes the program or a library, and cannot name a file, a
# plug-in or a program.
VARIABLES = frozenset(
    "CUDA_VISIBLE_DEVICES DNNL_DEFAULT_FPMATH_MODE DNNL_MAX_CPU_ISA DNNL_PRIMITIVE_CACHE_CAPACITY FI_PROVIDER "
    "GLIBC_TUNABLES GOMP_CPU_AFFINITY GOMP_SPINCOUNT HOROVOD_CACHE_CAPACITY HOROVOD_CYCLE_TIME "
    "HOROVOD_FUSION_THRESHOLD HVD_MAX_CPU_ISA KMP_AFFINITY KMP_BLOCKTIME MALLOC_ARENA_MAX MALLOC_MMAP_THRESHOLD_ "
    "MALLOC_TOP_PAD_ MALLOC_TRIM_THRESHOLD_ NCCL_ALGO NCCL_BUFFSIZE NCCL_CROSS_NIC NCCL_CUMEM_ENABLE NCCL_DEBUG "
    "NCCL_IB_DISABLE NCCL_IB_GID_INDEX NCCL_IB_HCA NCCL_MAX_CTAS NCCL_MAX_NCHANNELS NCCL_MIN_CTAS NCCL_MIN_NCHANNELS "
    "NCCL_NET_GDR_LEVEL NCCL_NTHREADS NCCL_NVLS_ENABLE NCCL_P2P_DISABLE NCCL_P2P_LEVEL NCCL_PROTO NCCL_SHM_DISABLE "
    "NCCL_SOCKET_IFNAME NCCL_VERSION OMPI_MCA_btl OMPI_MCA_btl_tcp_if_include OMPI_MCA_btl_vader_single_copy_mechanism "
    "OMPI_MCA_coll OMPI_MCA_hwloc_base_binding_policy OMPI_MCA_mpi_yield_when_idle OMPI_MCA_mtl OMPI_MCA_pml "
    "OMPI_MCA_rmaps_base_mapping_policy OMPI_MCA_rmaps_base_oversubscribe OMP_DYNAMIC OMP_MAX_ACTIVE_LEVELS "
    "OMP_NUM_THREADS OMP_PLACES OMP_PROC_BIND OMP_SCHEDULE OMP_WAIT_POLICY ONEDNN_DEFAULT_FPMATH_MODE "
    "ONEDNN_MAX_CPU_ISA ONEDNN_PRIMITIVE_CACHE_CAPACITY PRTE_MCA_rmaps_base_oversubscribe "
    "PRTE_MCA_rmaps_default_mapping_policy "
    "UCX_NET_DEVICES UCX_TLS".split()
)
# A "/" is allowed only in a network (10.0.0.0/16), so that even a listed variable cannot name a file.
_VALUE = re.compile(r"(?:[A-Za-z0-9_.,:;=^+*{}()@% \[\]-]|(?<=[0-9])/(?=[0-9]))*")
# Variables that say where mpirun places ranks. Only listed words are taken: mpirun has other words that read a file
# (rankfile:file=..., seq), and accepts any abbreviation of a word in upper or lower case.
_PLACES = frozenset(
    "OMPI_MCA_hwloc_base_binding_policy OMPI_MCA_rmaps_base_mapping_policy "
    "PRTE_MCA_rmaps_default_mapping_policy".split()
)
_OBJECT = "(?:slot|core|hwthread|l[123]cache|numa|package|socket|node|board|none|fill)"
_MODIFIER = (
    "(?:pe=[1-9][0-9]{0,3}|span|(?:no)?oversubscribe|overload-allowed|no-overload|if-supported|(?:no)?inherit|"
    "hwtcpus|corecpus)"
)
_PLACE = re.compile(
    f"(?:(?:ppr:[1-9][0-9]{{0,3}}:)?{_OBJECT}(?::{_MODIFIER}(?:[:,]{_MODIFIER})*)?|:{_MODIFIER}(?:[:,]{_MODIFIER})*)",
    re.IGNORECASE,
)


class Unknown(ValueError):
    """A part of the command line is in none of this module's lists. The error's text names the part."""


@dataclass(frozen=True)
class Recorded:
    """The parts of a command line. left_out: a line for each variable that is not used.

    launcher: the words before the program, which nobody has checked: to be shown, never to be run. Each option and its
    value are one word, so that no value can be the word ":", by which mpirun starts a new command.
    """

    launcher: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)  # option -> the file that it names
    left_out: tuple[str, ...] = ()


def parse(command_line: str) -> Recorded:
    """Parses a recorded command line. Errors: Unknown."""
    if "\0" in command_line:
        raise Unknown("it holds a NUL character")
    try:
        words = shlex.split(command_line)
    except ValueError as error:
        raise Unknown(str(error).lower()) from None
    if words[:1] == ["cd"] and words[2:3] == ["&&"]:
        words = words[3:]
    variables, words, left_out = _variables(words)
    launcher, words = _launcher(words)
    if words[:1] == ["analyse"]:
        raise Unknown("it computed what a training under PyTorch had measured; run the script of that training again")
    options, files = _options(iter(words))
    if trace := variables.pop(TRACE_VARIABLE, ""):
        files.setdefault("timeline-filename", trace)
    return Recorded(launcher, options, variables, files, left_out)


def _variables(words: list[str]) -> tuple[dict[str, str], list[str], tuple[str, ...]]:
    """Returns the variables to use, the words that follow the variables, and a line for each variable left out."""
    count = 1 if words[:1] == ["env"] else 0
    taken, left_out = {}, []
    while count < len(words) and (match := re.fullmatch(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", words[count], re.DOTALL)):
        name, value = match.groups()
        allowed = _PLACE if name in _PLACES else _VALUE
        if name == TRACE_VARIABLE or (name in VARIABLES and allowed.fullmatch(value)):
            taken[name] = value
        else:
            left_out.append(f"variable {name}={value}: set it yourself if you trust it")
        count += 1
    return taken, words[count:], tuple(left_out)


def _launcher(words: list[str]) -> tuple[tuple[str, ...], list[str]]:
    """Returns the words before the program's name, and the words after it. Errors: Unknown."""
    for place, word in enumerate(words):
        if PurePosixPath(word).name == PROGRAM and not word.startswith("-"):
            return tuple(words[:place]), words[place + 1 :]
    raise Unknown(f"there is no {PROGRAM} in it")


def _options(rest: Iterator[str]) -> tuple[tuple[str, ...], dict[str, str]]:
    """Returns the options of hvd_bench to use, and a dict: option that names an input -> the file's name."""
    taken, files = [], {}
    for word in rest:
        if word == "train" and not taken:
            continue
        spelled, equals, value = word.partition("=")
        name = spelled.removeprefix("--").replace("_", "-") if word.startswith("--") else ""
        row = data.of_training().get(name)
        if row is None or row["rerun"] == "refuse" or (row["value"] == "" and equals):
            raise Unknown(f"unknown option '{spelled}' of {PROGRAM}")
        if row["value"] and not equals:
            value = next(rest, None)
            if value is None or value.startswith("--"):
                raise Unknown(f"the value of option '{word}' is missing")
        if row["rerun"] == "name another file":
            files[name] = value
        elif row["rerun"] == "repeat" and row["value"] == "":
            taken.append(f"--{name}")
        elif row["rerun"] == "repeat":
            if not re.fullmatch(row["pattern"], value, re.DOTALL):
                raise Unknown(f"option '--{name}' of {PROGRAM} has the value '{value}', which is not taken")
            taken.append(f"--{name}={value}")
    return tuple(taken), files


def command(recorded: Recorded, program: Path, store_file: Path, files: Mapping[str, Path]) -> list[str]:
    """Returns the words of the command to run, without a launcher.

    files: option -> the file to use instead of the recorded file. A trace is written beside the store.

    Errors: HvdbError if --replay was recorded and `files` has no file for it.
    """
    if "replay" in recorded.files and "replay" not in files:
        raise HvdbError(f"the run replays the file '{recorded.files['replay']}': name your copy of it with --replay")
    own = [f"--{name}={path}" for name, path in files.items() if name in recorded.files]
    if "timeline-filename" in recorded.files:
        own.append(f"--timeline-filename={store_file}.trace")
    return [str(program), *recorded.options, *own, f"--db={store_file}"]
