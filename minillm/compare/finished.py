"""`runs=DIR,DIR`: finished runs, as the content of a comparison.json. They were not interleaved: no interval and no
verdict."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from minillm.compare import same
from minillm.compare.files import read_as
from minillm.compare.results import FORMAT
from minillm.compare.statistics import CONFIDENCE, MARGIN, Ratio
from minillm.compose import stored
from minillm.config import LAYERS
from minillm.csv_log import LOG, whole_rows
from minillm.errors import UserError

# What a finished run may differ in without having been told: the choices that this is all about.
CHOICES = (*LAYERS, "compile")
INSTEAD = "leave the run out, or run it again"


class Env(BaseModel, extra="allow"):
    device: str


class Corpus(BaseModel, extra="allow"):
    source: str
    hash: str


class Ended(BaseModel):
    """summary.json of any run."""

    status: str


class Summary(Ended):
    """summary.json of a finished run: what is read of it."""

    env: Env
    corpus: Corpus
    timings_valid: bool
    tokens_per_sec: float | None
    train_loss: float | None
    val_loss: float | None
    step_ms: dict[str, float] | None = None
    data_wait_ms: float | None = None
    mfu: float | None = None
    peak_allocated_gib: float | None = None
    peak_reserved_gib: float | None = None
    whole_run_peak_gib: float | None = None
    parameters: int | None = None
    precision: str | None = None
    layers_ran: dict[str, str] | None = None
    attention_backend: str | None = None


def tabulated(folders: list[Path], command: str, now: str) -> dict[str, Any]:
    """As `results.summarize` does. Raises UserError for what is no finished run, and for runs that differ in more than
    CHOICES."""
    problems, runs = [], []
    for folder in folders:
        try:
            runs.append((stored(folder / "config.yaml"), finished(folder), losses(folder)))
        except UserError as error:
            problems.append(f"runs={folder}: {error}")
    if len(folders) < 2:
        problems.append("runs= takes two folders or more, with commas between them")
    if problems:
        raise UserError("\n".join(problems))
    configs, summaries, curves = zip(*runs, strict=True)
    names = [str(folder) for folder in folders]
    same.check_configs(configs, CHOICES, names)
    same.check_surroundings([s["env"] for s in summaries], [s["corpus"] for s in summaries], CHOICES, names)
    differences = same.differences(configs)
    labels = [folder.name for folder in folders]
    if len(set(labels)) < len(labels):
        labels = names
    return {
        "format": FORMAT,
        "status": "finished",
        "command": command,
        "started": now,
        "interleaved": False,
        "minutes": None,
        "varied": list(dict.fromkeys(key.split(".")[0] for key in differences)),
        "baseline": labels[0],
        "confidence": CONFIDENCE,
        "margin": MARGIN,
        "rounds": 1,
        "rounds_planned": None,
        "disturbed": {},
        "env": summaries[0]["env"],
        "corpus": summaries[0]["corpus"],
        "differences": differences,
        "variants": [
            variant(label, config, summary, curve, summaries[0])
            for label, config, summary, curve in zip(labels, configs, summaries, curves, strict=True)
        ],
    }


def variant(
    name: str, config: dict[str, Any], summary: dict[str, Any], curve: dict[str, float], first: dict[str, Any]
) -> dict[str, Any]:
    """One run, as `results.summarize_variant` has it."""
    rate, base = summary["tokens_per_sec"], first["tokens_per_sec"]
    valid = summary["timings_valid"] and first["timings_valid"]
    ratio = Ratio(rate / base, None, None, 1) if valid and rate and base and summary is not first else None
    return {
        "name": name,
        "config": config,
        "status": "ok",
        "error": None,
        "timings_valid": valid,
        **{key: summary[key] for key in ("layers_ran", "attention_backend", "precision", "parameters")},
        "tokens_per_sec": rate and {"median": rate, "min": rate, "max": rate, "low": None, "high": None},
        **{key: summary[key] for key in ("step_ms", "data_wait_ms", "mfu")},
        "machine": {},
        "memory": {key: summary[key] for key in ("peak_allocated_gib", "peak_reserved_gib", "whole_run_peak_gib")},
        "loss": summary["train_loss"],
        "val_loss": summary["val_loss"],
        "predicted_ms": None,
        "ratio": asdict(ratio) if ratio else None,
        "rounds": [],
        "verdict": None,
        "parity": None,
        "losses": {str(config.get("seed")): curve},
    }


def finished(folder: Path) -> dict[str, Any]:
    """Of summary.json what `Summary` has. Raises UserError for a run that has none or did not finish."""
    path = folder / "summary.json"
    status = read_as(Ended, path, INSTEAD).status
    if status != "finished":
        raise UserError(f"{path}: its status is {status}: {INSTEAD}")
    return read_as(Summary, path, INSTEAD).model_dump()


def losses(folder: Path) -> dict[str, float]:
    """Of the training, by step, as far as they were logged. Raises UserError for a file that is no run's log."""
    rows = whole_rows(folder / LOG)
    if rows and "train/loss" not in rows[0]:
        raise UserError(f"{folder / LOG} has no column train/loss: {INSTEAD}")
    return {row["step"]: float(row["train/loss"]) for row in rows if row["train/loss"]}
