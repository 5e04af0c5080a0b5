"""What the machine can do: devices, their peaks, the default precision, and why there is no GPU."""

import importlib.metadata
import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any, Literal

import torch

import kernels
from minillm.attention import backend_that_runs
from minillm.config import Config
from minillm.layers import triton_layers

# Dense bf16 matrix product with fp32 accumulation, FLOP/s, from the vendor's data sheets. The first name that the
# device's name contains counts, so longer names come first. A device that is not here has no known peak, and no MFU.
PEAK_FLOPS: dict[str, float] = {
    "B200": 2250e12,
    "GH200": 989e12,
    "H200 NVL": 835e12,
    "H200": 989e12,
    "H100 NVL": 835e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "H20": 148e12,
    "A100": 312e12,
    "A800": 312e12,
    "A40": 149.7e12,
    "A30": 165e12,
    "A10G": 70e12,
    "A10": 125e12,
    "L40S": 362e12,
    "L40": 181e12,
    "L4": 121e12,
}


def peak_flops(device_name: str) -> float | None:
    """Dense bf16 peak of a device by its name, FLOP/s; None where it is not known, as of a part of a GPU (MIG)."""
    words = device_name.split()
    if "MIG" in words:
        return None
    return next((peak for name, peak in PEAK_FLOPS.items() if is_part(name.split(), words)), None)


def is_part(name: list[str], words: list[str]) -> bool:
    """Whether `name` occurs in `words` as whole words, so that an L40S is no L4: "A100-SXM4-80GB" starts with A100."""
    heads = [word.split("-")[0] for word in words]
    return any(heads[i : i + len(name)] == name for i in range(len(heads)))


def accelerator(config: Config) -> str:
    """`cpu` or `gpu`: what `trainer.accelerator` comes to on this machine."""
    chosen = config.trainer.accelerator
    return ("gpu" if torch.cuda.is_available() else "cpu") if chosen == "auto" else chosen


def device(config: Config) -> torch.device:
    """The device that a run works on; of several ranks, each one's own."""
    return torch.device("cuda" if accelerator(config) == "gpu" else "cpu")


def precision(config: Config) -> Literal["32-true", "16-mixed", "bf16-mixed", "bf16-true"]:
    """What `trainer.precision` comes to. `auto`: bf16-mixed from capability 8.0, else 16-mixed; 32-true on a CPU."""
    if config.trainer.precision != "auto":
        return config.trainer.precision
    if accelerator(config) == "cpu":
        return "32-true"
    return "bf16-mixed" if torch.cuda.get_device_capability() >= (8, 0) else "16-mixed"


def why_no_gpu() -> str:
    """Why no GPU can be used: a clause. A GPU that is there but cannot be used is told apart from none."""
    if not Path("/dev/nvidia0").exists() and shutil.which("nvidia-smi") is None:
        return "this machine has no NVIDIA GPU"
    if torch.version.cuda is None:
        return "there is a GPU, but this build of torch is for the CPU: install PyTorch's CUDA build"
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return f"there is a GPU, but it cannot be used ({str(error).splitlines()[0]})"
    return "there is a GPU, but it cannot be used: see nvidia-smi"


def c_compiler() -> str | None:
    """The C compiler that Triton and torch.compile build their launchers with."""
    names = (os.environ.get("CC"), "gcc", "clang", "cc")
    return next((found for name in names if name and (found := shutil.which(name))), None)


def attention_backend(config: Config) -> str | None:
    """The kernels that attention runs on: PyTorch's own answer for this shape, precision and device."""
    dtypes = {"32-true": torch.float32, "16-mixed": torch.float16}
    dtype = dtypes.get(precision(config), torch.bfloat16)
    return backend_that_runs(config.trainer.attention, config.model, config.data.sequence_length, dtype, device(config))


def interpreted(config: Config) -> bool:
    """Whether a layer of this run is a Triton kernel in Triton's interpreter: right results, meaningless timings."""
    return bool(triton_layers(config)) and kernels.operator.INTERPRETED


def device_name(kind: str) -> str:
    """The device's name as its vendor gives it; of a CPU, what the operating system knows."""
    if kind == "gpu":
        return torch.cuda.get_device_name()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def environment(kind: str) -> dict[str, Any]:
    """What the numbers of a run depend on, besides its config; None where a thing is not there or not known."""
    driver = Path("/proc/driver/nvidia/version")
    return {
        "device": device_name(kind),
        "torch": torch.__version__,
        "triton": version("triton"),
        "cuda": torch.version.cuda,
        "driver": next((w for w in driver.read_text().split() if w[0].isdigit()), None) if driver.exists() else None,
        "lightning": version("lightning"),
        "python": platform.python_version(),
        "commit": commit(),
    }


def version(package: str) -> str | None:
    """An installed package's version; None where it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def commit() -> str | None:
    """The repository's commit, with `+` where files differ from it; None outside a git checkout."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(Path(__file__).parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=5, check=True).stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None
