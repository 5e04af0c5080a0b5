"""`summary.json`: what a run came to, for people and programs. Null where a thing is not known, never a guess."""

import json
import math
from pathlib import Path
from typing import Any

from minillm import distributed
from minillm.flops import CONVENTION
from minillm.whole import whole_file

KEYS = (
    "status", "error", "steps", "tokens", "train_loss", "val_loss", "val_bits_per_byte", "unigram_bits_per_byte",
    "tokens_per_sec", "step_ms", "mfu", "model_flops_per_token", "peak_flops", "data_wait_ms", "gpu_idle_share",
    "timings_valid", "peak_allocated_gib", "peak_reserved_gib", "whole_run_peak_gib",
    "parameters", "precision", "layers_ran", "attention_backend", "starts", "env", "corpus",
)  # fmt: skip


def write(folder: Path, summary: dict[str, Any]) -> None:
    """Write all keys, in order, on the first rank. The file is the old one or the new one at any moment."""
    unknown = set(summary) - set(KEYS)
    if unknown:
        raise ValueError(f"not in the summary's keys: {sorted(unknown)}")
    if distributed.rank():
        return
    content = {key: finite(summary.get(key)) for key in KEYS}
    with whole_file(folder / "summary.json") as file:
        file.write(json.dumps(content, indent=2, allow_nan=False) + "\n")


def finite(value: Any) -> Any:
    """JSON has no nan and no infinity: null."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def table(summary: dict[str, Any]) -> str:
    """The end of a run for a reader: a few aligned lines, only of what is known."""
    get, step_ms = summary.get, summary.get("step_ms")
    rows: list[tuple[str, str | None]] = [
        ("steps", f"{get('steps')} ({get('tokens'):,} tokens)"),
        ("training loss", shown("{:.3f}", get("train_loss"))),
        ("validation loss", shown("{:.3f}", get("val_loss"))),
        ("bits per byte", shown("{:.3f}", get("val_bits_per_byte"), compared(get("unigram_bits_per_byte")))),
        ("tokens/s", shown("{:,.0f}", get("tokens_per_sec"), "" if get("timings_valid") else UNTRUE)),
        ("step", step_ms and "{median:.1f} ms (p10 {p10:.1f}, p90 {p90:.1f})".format(**step_ms)),
        ("waiting for data", shown("{:.2f} ms a step", get("data_wait_ms"))),
        ("MFU", shown("{:.1%}", get("mfu"), f" ({CONVENTION})")),
        ("GPU idle", shown("{:.0%}", get("gpu_idle_share"))),
        ("peak memory", shown("{:.2f} GiB allocated", get("peak_allocated_gib"))),
    ]
    return "\n".join(f"{name:>18}  {value}" for name, value in rows if value)


UNTRUE = " (interpreted or profiled: means nothing)"


def shown(form: str, value: float | None, more: str = "") -> str | None:
    return None if value is None else form.format(value) + more


def compared(unigram: float | None) -> str:
    return "" if unigram is None else f" (a model of single tokens: {unigram:.3f})"


def hint(summary: dict[str, Any]) -> str | None:
    """A line for a GPU that mostly waited: fused layers cannot show there."""
    idle = summary.get("gpu_idle_share")
    if idle is None or idle < 0.3:
        return None
    return (
        f"the GPU idled {idle:.0%} of the time: the host set the pace, and this run does not "
        "show what kernels do; try a larger model or batch, such as experiment=norm_110m"
    )
