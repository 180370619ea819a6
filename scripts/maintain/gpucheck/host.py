"""Finds the host's GPU, NVIDIA's libraries, a Python with PyTorch, and tools. Uses no network and no packages."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

# Names of the libraries whose folders the loader must know.
WANTED = re.compile(r"lib(cudnn|nccl|cublasLt|nvrtc)\.so\.\d+$")
IN_USE = re.compile(WANTED.pattern.rstrip("$"))  # matches resolved file names, such as libcudnn.so.9.19.0
TOOLKITS = ("/usr/local/cuda*/lib64", "/usr/local/cuda*/lib", "/opt/nvidia/*/lib64", "/usr/lib/x86_64-linux-gnu")
# Folders in a Python's site-packages: wheels of CUDA 11 and 12, wheels of CUDA 13, and PyTorch's own copies.
WHEELS = ("nvidia/*/lib", "nvidia/lib", "torch/lib")
PYTHONS = (
    "python3",
    "python",
    "/usr/bin/python3",
    "/usr/local/bin/python3",
    "/opt/conda/bin/python3",
    "/opt/venv/bin/python3",
)
SITE = """import site, sys
print("\\n".join(dict.fromkeys([*site.getsitepackages(), site.getusersitepackages(), *sys.path])))"""
# Prints the files that PyTorch itself has loaded, on a host with a GPU.
LOADED = """import torch
torch.backends.cudnn.version()
torch.cuda.is_available() and torch.cuda.init()
print("\\n".join(dict.fromkeys(line.split()[-1] for line in open("/proc/self/maps") if ".so" in line)))"""
SETTINGS = "name,uuid,driver_version,memory.total,clocks.max.sm,clocks.max.memory,power.limit,compute_mode"


@dataclass(frozen=True)
class Gpu:
    """The first GPU that this process may use."""

    name: str
    capability: str  # "9.0"
    memory_bytes: int
    driver: str  # the newest CUDA version that the driver supports: "13.0"

    def file_name(self) -> str:
        """Returns the name used in tests/cudnn/devices: "NVIDIA H200" is h200."""
        words = re.findall(r"[a-z0-9]+", self.name.lower().replace("nvidia", ""))
        return "-".join(words) or "gpu"


def find_gpu(library: str = "libcuda.so.1") -> Gpu | str:
    """Returns the first GPU, or one line that says why there is none."""
    try:
        cuda = ctypes.CDLL(library)
    except OSError:
        return f"there is no {library}: no NVIDIA driver is installed, or the container was started without it"
    if status := cuda.cuInit(0):
        return f"the NVIDIA driver does not start (cuInit: error {status}): see nvidia-smi"
    count, version = ctypes.c_int(), ctypes.c_int()
    cuda.cuDriverGetVersion(ctypes.byref(version))
    if cuda.cuDeviceGetCount(ctypes.byref(count)) or count.value == 0:
        return "the NVIDIA driver shows no GPU (CUDA_VISIBLE_DEVICES?)"
    device, memory = ctypes.c_int(), ctypes.c_size_t()
    major, minor = ctypes.c_int(), ctypes.c_int()
    name = ctypes.create_string_buffer(128)
    cuda.cuDeviceGet(ctypes.byref(device), 0)
    cuda.cuDeviceGetName(name, len(name), device)
    cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    cuda.cuDeviceGetAttribute(ctypes.byref(major), 75, device)  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
    cuda.cuDeviceGetAttribute(ctypes.byref(minor), 76, device)
    return Gpu(
        name=name.value.decode(errors="replace"),
        capability=f"{major.value}.{minor.value}",
        memory_bytes=memory.value,
        driver=f"{version.value // 1000}.{version.value % 1000 // 10}",
    )


def says(command: list[str], seconds: float = 60.0) -> str:
    """Returns the standard output of a command, or "" if it fails or takes too long."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def find_torch(given: str | None) -> tuple[str, str] | str:
    """Returns a Python with PyTorch and the version, or a line that says why there is none. If `given` is set, only
    this Python is tried."""
    names = [given] if given else [*filter(None, [os.environ.get("HVD_PYTHON")]), sys.executable, *PYTHONS]
    pythons = dict.fromkeys(path for name in names if (path := shutil.which(name)))
    for python in pythons:
        if version := says([python, "-c", "import torch; print(torch.__version__)"]).strip():
            return python, version
    return f"no PyTorch in {', '.join(pythons) or ', '.join(names)}: name a Python that has it with --python"


def _matches(pattern: str) -> list[str]:
    """Returns the paths that match an absolute pattern, the newest version first."""
    return sorted((str(path) for path in Path("/").glob(pattern.lstrip("/"))), reverse=True)


def _site_packages(python: str) -> list[str]:
    return [folder for folder in says([python, "-c", SITE]).splitlines() if folder.startswith("/")]


def _folders_in_use(python: str) -> list[str]:
    """Returns the folders of the libraries that `python`'s PyTorch loads. Empty without PyTorch and for a
    PyTorch that is linked statically."""
    files = [Path(line) for line in says([python, "-c", LOADED], 120.0).splitlines() if line.startswith("/")]
    return list(dict.fromkeys(str(file.parent) for file in files if IN_USE.match(file.name)))


def library_folders(pythons: list[str], patterns: tuple[str, ...] = TOOLKITS) -> list[str]:
    """Returns folders with cuDNN, NCCL, cuBLASLt or NVRTC. First come the folders that PyTorch uses, so that both sides
    of a comparison run on the same libraries. Then come the Pythons' wheels, then the CUDA toolkits of this host."""
    sites = [site for python in pythons for site in _site_packages(python)]
    places = [f"{site}/{wheel}" for site in sites for wheel in WHEELS]
    found: dict[str, str] = {}
    loaded = [folder for python in pythons for folder in _folders_in_use(python)]
    for folder in [*loaded, *(match for place in [*places, *patterns] for match in _matches(place))]:
        if Path(folder).is_dir() and any(WANTED.match(name) for name in os.listdir(folder)):
            found.setdefault(os.path.realpath(folder), folder)
    return list(found.values())


def find_sanitizer(pythons: list[str]) -> str | None:
    """Returns the path of compute-sanitizer, from the PATH, the toolkits or the wheels."""
    places = [shutil.which("compute-sanitizer") or ""]
    places += _matches("/usr/local/cuda*/bin/compute-sanitizer")
    places += _matches("/usr/local/cuda*/compute-sanitizer/compute-sanitizer")
    for python in pythons:
        for site in _site_packages(python):
            places += _matches(f"{site}/nvidia/*/bin/compute-sanitizer")
    return next((place for place in places if place and os.access(place, os.X_OK)), None)


def compile_cache() -> Path:
    """Returns this user's folder for the output of torch.compile. The folder outlives the call and is not a result."""
    folder = Path(tempfile.gettempdir()) / f"hvd_bench-torch-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.getuid():  # PyTorch loads programs from this folder
        return Path(tempfile.mkdtemp(prefix="hvd_bench-torch-"))
    return folder


def machine_facts(folders: list[str]) -> dict[str, object]:
    """Returns the facts about the machine that a reader of the results needs."""
    return {
        "kernel": platform.platform(),
        "glibc": " ".join(platform.libc_ver()),
        "python": sys.version.split()[0],
        "processor": next(iter(re.findall(r"Model name: *(.*)", says(["lscpu"]))), platform.processor()),
        "processors": len(os.sched_getaffinity(0)),
        "gpus": says(["nvidia-smi", f"--query-gpu={SETTINGS}", "--format=csv"]).splitlines(),
        "gpu_processes": says(["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv"]).splitlines(),
        "library_folders": folders,
        "libraries": sorted(
            name
            for folder in folders
            for name in os.listdir(folder)
            if WANTED.match(name) or name.startswith("libcudnn")
        ),
    }


def gpu_state() -> str:
    """Returns the present clocks, temperature, power and throttling in one line; "" without nvidia-smi."""
    queries = "clocks.sm,clocks.mem,temperature.gpu,power.draw,utilization.gpu,clocks_throttle_reasons.active"
    return says(["nvidia-smi", f"--query-gpu={queries}", "--format=csv,noheader"], 20.0).strip()


def smi_report() -> str:
    """Returns the full report of nvidia-smi and the connections between GPUs; "" without nvidia-smi."""
    return says(["nvidia-smi", "-q"]) + says(["nvidia-smi", "topo", "-m"])
