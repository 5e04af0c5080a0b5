"""What the machine can do: devices, their peaks, the default precision, and the sentences about what is missing."""

import importlib.metadata
import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any, Literal

import torch

import kernels
from minillm import distributed
from minillm.attention import backend_that_runs
from minillm.config import Config
from minillm.errors import UserError
from minillm.layers import build_layers, triton_layers

# Dense bf16 matrix product with fp32 accumulation, FLOP/s, from the vendor's data sheets. The first name that the
# device's name contains counts, so longer names come first. A device that is not here has no known peak, and no MFU.
PEAK_FLOPS: dict[str, float] = {
    "B200": 2250e12,
    "GH200": 989e12,
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
    """Dense bf16 peak of a device by its name, FLOP/s; None where it is not known."""
    words = device_name.split()
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


def check(config: Config) -> None:
    """Raise UserError for what this configuration asks and this machine has not, before any work is done."""
    build_layers(config)  # raises where they cannot be built
    trainer, kind = config.trainer, accelerator(config)
    if distributed.launched():
        started = distributed.world_size()
        if trainer.strategy == "single" or trainer.devices != started:
            raise UserError(
                f"torchrun has started {started} processes for trainer.devices={trainer.devices}: type trainer=ddp or "
                f"trainer=fsdp with trainer.devices={started}, or leave torchrun out, which is not needed"
            )
        if os.environ.get("LOCAL_WORLD_SIZE", str(started)) != str(started):
            raise UserError("torchrun has started processes on several machines: a run takes devices of one")
    ours = triton_layers(config)
    if kind == "gpu":
        if not torch.cuda.is_available():
            raise UserError(f"trainer.accelerator=gpu, but {why_no_gpu()}; without it use trainer=cpu")
        if trainer.devices > torch.cuda.device_count():
            raise UserError(f"trainer.devices={trainer.devices}, but {torch.cuda.device_count()} GPU(s) can be used")
        compiled = [
            *ours,
            *(["norm=compiled"] if config.norm.name == "compiled" else []),
            *(["compile=true"] if config.compile else []),
        ]
        if compiled and c_compiler() is None:
            raise UserError(
                f"{' '.join(compiled)} is compiled on the GPU's first use and needs a C compiler, and none was found: "
                "install gcc (or set CC), or use layers=eager norm=torch compile=false"
            )
        if precision(config).startswith("bf16") and torch.cuda.get_device_capability() < (8, 0):
            raise UserError(
                f"trainer.precision={precision(config)} needs compute capability 8.0, {torch.cuda.get_device_name()} "
                f"has {'.'.join(map(str, torch.cuda.get_device_capability()))}: use trainer.precision=16-mixed"
            )
    else:
        if precision(config) == "16-mixed":
            raise UserError("trainer.precision=16-mixed needs a GPU: on a CPU use 32-true, bf16-mixed or bf16-true")
        if ours and torch.cuda.is_available():
            raise UserError(
                f"trainer=cpu {' '.join(ours)} beside a usable GPU: Triton compiles for the GPU here; use "
                "layers=eager, or hide the GPU (CUDA_VISIBLE_DEVICES= ) to run the kernels in Triton's interpreter"
            )
    if trainer.attention != "auto" and attention_backend(config) != trainer.attention:
        raise UserError(
            f"trainer.attention={trainer.attention} cannot run here ({device_name(kind)}, {precision(config)}, head "
            f"dimension {config.model.head_dim}): use trainer.attention=auto"
        )
    if precision(config) == "bf16-true" and config.optim.beta2 > 0.99:
        raise UserError(
            f"optim.beta2={config.optim.beta2} with trainer.precision=bf16-true: a bf16 second moment cannot decay "
            "that slowly; use at most 0.99 (0.95 is usual), or bf16-mixed"
        )


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
