"""A finished comparison in W&B: a run a variant and one that sums up, in one group.

A variant's run has the keys of a training log, on the same step axis, from its first process: W&B's run table, run
comparer and overlaid charts work as with training runs. Its summary has the numbers of all rounds.
"""

import shlex
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from minillm.compare.files import workers
from minillm.compare.report.charts import charts
from minillm.compare.report.tables import Result, title
from minillm.config import LAYERS, Config, LoggerConfig
from minillm.csv_log import KEYS, LOG, whole_rows
from minillm.wandb_log import choices, mode, start_wandb

if TYPE_CHECKING:
    from wandb import Run, Table

ROUND = ("round", "seed", "tokens_per_sec", "log_ratio", "peak_allocated_gib")


def track(result: Result, folder: Path) -> str | None:
    """Write all the runs; returns the line for people: where they are, or the command that uploads them.

    None where W&B is not wanted. What was written of the comparison before, with fewer rounds, is replaced.
    """
    logger = result["variants"][0]["config"]["logger"]
    if logger["name"] == "none" or mode() == "disabled":
        return None
    import wandb

    try:
        return written(result, folder, logger["group"] or f"{result['started'][:10]}_{folder.name}")
    except wandb.Error as error:  # everything is in the folder all the same
        return f"W&B failed: {error}"


def written(result: Result, folder: Path, group: str) -> str:
    begins = own_id(folder)
    for old in list(folder.glob(f"wandb/offline-run-*-{begins}-*")):
        shutil.rmtree(old)
    for number, variant in enumerate(result["variants"]):
        said = about(result, variant) | {"id": f"{begins}-{number}", "name": variant["name"], "job_type": "variant"}
        with start(folder, variant, group, **said) as run:
            log_variant(run, result, variant, first_rows(folder, number, variant))
            run.finish(exit_code=1 if variant["status"] == "failed" else 0)
    shared = {key: result[key] for key in ("command", "varied", "margin", "confidence", "env", "corpus")}
    said = {"id": f"{begins}-all", "name": title(result), "job_type": "comparison", "config": shared}
    with start(folder, result["variants"][0], group, **said) as run:
        log_comparison(run, result)
        if run.offline:
            return f"W&B is offline; to upload: wandb sync {shlex.quote(str(folder))}/wandb/offline-run-*"
        return f"W&B: {run.project_url}/groups/{quote(run.group)}"


def own_id(folder: Path) -> str:
    """What the ids of this comparison's runs begin with: a run that has the id of an older one takes its place in W&B,
    online and when it is uploaded."""
    file = folder / "wandb" / "run_id"
    if not file.exists():
        file.parent.mkdir(exist_ok=True)
        file.write_text(uuid.uuid4().hex[:8])
    return file.read_text()


def start(folder: Path, variant: Mapping[str, Any], group: str, **about: Any) -> "Run":
    logger = LoggerConfig.model_validate(variant["config"]["logger"])
    return start_wandb(folder, logger.model_copy(update={"group": group}), **about)


def about(result: Result, variant: Mapping[str, Any]) -> dict[str, Any]:
    """Config and tags, as a training run has them; what was typed is a tag too."""
    ran = {key: variant[key] for key in ("layers_ran", "attention_backend")}
    config = Config.model_validate(variant["config"])
    layers = variant["layers_ran"] or {layer: variant["config"][layer]["name"] for layer in LAYERS}
    tags = [*choices(config, layers, variant["precision"] or config.trainer.precision), variant["name"][:64]]
    return {"config": {**variant["config"], **ran, "env": result["env"]}, "tags": list(dict.fromkeys(tags))}


def first_rows(folder: Path, number: int, variant: Mapping[str, Any]) -> dict[int, dict[str, float]]:
    """By step, what the variant's first process logged, and the loss of every step."""
    first: Mapping[str, float | None] = next(iter(variant["losses"].values()), {})
    rows = {int(step): {"train/loss": loss} for step, loss in first.items() if loss is not None}
    for row in whole_rows(workers(folder, "round_0") / str(number) / LOG):
        rows.setdefault(int(row["step"]), {}).update({key: float(row[key]) for key in KEYS if row[key]})
    return dict(sorted(rows.items()))


def log_variant(run: "Run", result: Result, variant: Mapping[str, Any], rows: Mapping[int, dict[str, float]]) -> None:
    for step, row in rows.items():
        run.log(row, step=step)
    seeds = [(int(seed), int(step), loss) for seed, curve in variant["losses"].items() for step, loss in curve.items()]
    disturbed = [", ".join(result["disturbed"].get(str(one["round"]), [])) for one in variant["rounds"]]
    rounds = [[*(one[key] for key in ROUND), why] for one, why in zip(variant["rounds"], disturbed, strict=True)]
    run.log({"rounds": table([*ROUND, "disturbed"], rounds), "seeds": table(["seed", "step", "loss"], seeds)})
    run.summary.update(numbers(variant))


def numbers(variant: Mapping[str, Any]) -> dict[str, Any]:
    """What all rounds came to, under the keys of a training log where it has them."""
    rate, step, ratio, verdict, parity = (
        variant[key] or {} for key in ("tokens_per_sec", "step_ms", "ratio", "verdict", "parity")
    )
    found = {
        "perf/tokens_per_sec": rate.get("median"),
        "perf/step_ms": step.get("median"),
        "perf/mfu": variant["mfu"],
        "perf/data_wait_ms": variant["data_wait_ms"],
        "memory/peak_allocated_gib": variant["memory"].get("peak_allocated_gib"),
        "memory/peak_reserved_gib": variant["memory"].get("peak_reserved_gib"),
        "train/loss": variant["loss"],
        "compare/ratio": ratio.get("estimate"),
        "compare/ratio_low": ratio.get("low"),
        "compare/ratio_high": ratio.get("high"),
        "compare/speed": verdict.get("text"),
        "compare/training": parity.get("text"),
        "compare/error": variant["error"],
        "timings_valid": variant["timings_valid"],
    }
    return {key: value for key, value in found.items() if value is not None}


def log_comparison(run: "Run", result: Result) -> None:
    """The table, a line a variant, and the page's charts as pictures."""
    import wandb

    lines = [{"variant": variant["name"], **numbers(variant)} for variant in result["variants"]]
    columns = list(dict.fromkeys(key for line in lines for key in line))
    pictures = {
        f"compare/{name}": wandb.Image(drawing.image(), caption=drawing.label)
        for name, drawing in charts(result).items()
    }
    run.log({"compare/table": table(columns, [[line.get(key) for key in columns] for line in lines]), **pictures})


def table(columns: list[str], rows: list[Any]) -> "Table":
    import wandb

    return wandb.Table(columns=[*columns], data=[list(row) for row in rows], allow_mixed_types=True)
