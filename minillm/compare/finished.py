"""`runs=DIR,DIR`: finished runs, as the content of a comparison.json. They were not interleaved: no interval and no
verdict."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from minillm.compare import same
from minillm.compare.results import FORMAT
from minillm.compare.statistics import CONFIDENCE, MARGIN, Ratio
from minillm.config import LAYERS
from minillm.csv_log import LOG, whole_rows
from minillm.errors import UserError

# What a finished run may differ in without having been told: the choices that this is all about.
CHOICES = (*LAYERS, "compile")


def tabulated(folders: list[Path], command: str, now: str) -> dict[str, Any]:
    """As `results.summarize` does. Raises UserError for what is no finished run, and for runs that differ in more than
    CHOICES."""
    problems, runs = [], []
    for folder in folders:
        try:
            runs.append((OmegaConf.to_container(OmegaConf.load(folder / "config.yaml")), finished(folder)))
        except (OSError, ValueError) as error:
            problems.append(f"runs={folder}: no finished run ({error})")
    if len(folders) < 2:
        problems.append("runs= takes two folders or more, with commas between them")
    if problems:
        raise UserError("\n".join(problems))
    configs: list[Any] = [config for config, _ in runs]
    summaries = [summary for _, summary in runs]
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
            variant(label, folder, config, summary, summaries[0])
            for label, folder, config, summary in zip(labels, folders, configs, summaries, strict=True)
        ],
    }


def variant(
    name: str, folder: Path, config: dict[str, Any], summary: dict[str, Any], first: dict[str, Any]
) -> dict[str, Any]:
    """One run, as `results.summarize_variant` has it."""
    rate, base = summary["tokens_per_sec"], first["tokens_per_sec"]
    valid = summary["timings_valid"] and first["timings_valid"]
    ratio = Ratio(rate / base, None, None, 1) if valid and rate and base and summary is not first else None
    losses = {row["step"]: float(row["train/loss"]) for row in whole_rows(folder / LOG) if row["train/loss"]}
    return {
        "name": name,
        "config": config,
        "status": "ok",
        "error": None,
        "timings_valid": valid,
        **{key: summary.get(key) for key in ("layers_ran", "attention_backend", "precision", "parameters")},
        "tokens_per_sec": rate and {"median": rate, "min": rate, "max": rate, "low": None, "high": None},
        **{key: summary.get(key) for key in ("step_ms", "data_wait_ms", "mfu")},
        "machine": {},
        "memory": {key: summary.get(key) for key in ("peak_allocated_gib", "peak_reserved_gib", "whole_run_peak_gib")},
        "loss": summary["train_loss"],
        "val_loss": summary["val_loss"],
        "predicted_ms": None,
        "ratio": asdict(ratio) if ratio else None,
        "rounds": [],
        "verdict": None,
        "parity": None,
        "losses": {str(config["seed"]): losses},
    }


def finished(folder: Path) -> dict[str, Any]:
    """summary.json. Raises ValueError for a run that has none or did not finish."""
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    if summary["status"] != "finished":
        raise ValueError(f"its status is {summary['status']}")
    return summary
