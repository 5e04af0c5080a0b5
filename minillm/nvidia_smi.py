"""What the driver says of a GPU, asked through nvidia-smi: clock, power, heat, and who else uses it.

Asking takes some hundred milliseconds: never between steps that are measured.
"""

import subprocess

import torch

from minillm import distributed

GPU_FIELDS = "clocks.sm,power.draw,temperature.gpu"


def this_gpu() -> str:
    """The UUID of this process's device."""
    return f"GPU-{torch.cuda.get_device_properties().uuid}"


def disturbance() -> str | None:
    """A warning if others are on the GPU of a run that has just been measured, or on that of another of its ranks (all
    of which take part); None if not, and where that is not known."""
    (most,) = distributed.highest([other_processes(this_gpu(), 1) or 0])
    if not most:
        return None
    return f"{most:.0f} other process(es) on the GPU at the end of the run: its times are not those of a run alone"


def gpu_state(gpu: str) -> tuple[float | None, float | None, float | None]:
    """(MHz, W, degrees Celsius), None for what the driver does not tell."""
    answer = nvidia_smi(gpu, f"--query-gpu={GPU_FIELDS}")
    values = [number(text) for text in answer[0].split(",")] if answer else []
    return (values[0], values[1], values[2]) if len(values) == 3 else (None, None, None)


def other_processes(gpu: str, ours: int) -> int | None:
    """How many processes use the device besides our `ours`. By number: inside a container their ids are others.

    None where the driver lists fewer than there must be: then it does not show them all."""
    answer = nvidia_smi(gpu, "--query-compute-apps=pid")
    return None if answer is None or len(answer) < ours else len(answer) - ours


def nvidia_smi(gpu: str, query: str) -> list[str] | None:
    command = ["nvidia-smi", "-i", gpu, query, "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return [line for line in done.stdout.splitlines() if line.strip()]


def number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:  # [N/A], [Not Supported]
        return None
