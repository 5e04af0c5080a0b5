"""An explanation in W&B: one run with its tables and its plot."""

import shlex
from pathlib import Path

from minillm.explain.as_json import to_json
from minillm.explain.results import Explanation
from minillm.wandb_log import mode, start_wandb


def track(explanation: Explanation, folder: Path) -> str:
    """Write the run; returns the line for people: where it is, or the command that uploads it. "" where W&B is not
    wanted."""
    logger = explanation.plan.config.logger
    if logger.name == "none" or mode() == "disabled":
        return ""
    import wandb

    content = to_json(explanation)
    columns: list[str | int] = [
        "layer",
        "implementation",
        "pass",
        "kernels",
        "bytes",
        "kept",
        "floor_bytes",
        "ms",
        "of_roof",
    ]
    rows = [
        [
            layer["title"],
            name,
            direction,
            len(one["launches"]),
            one["bytes"],
            one["kept"],
            layer["floor_bytes"][direction],
            found["ms"].get(direction, {}).get("median"),
            found["of_roof"].get(direction),
        ]
        for layer in content["layers"]
        for name, found in layer["implementations"].items()
        for direction, one in found["counted"].items()
    ]
    about = {key: content[key] for key in ("command", "env", "card", "config", "predicted")}
    title = f"{explanation.plan.layer} explained"
    try:
        with start_wandb(folder, logger, name=title, job_type="explanation", config=about) as run:
            pictures = {"explain/plot": wandb.Image(str(path))} if (path := folder / "explain.png").exists() else {}
            run.log({"explain/table": wandb.Table(columns=columns, data=rows, allow_mixed_types=True), **pictures})
            if run.offline:
                return f"W&B is offline; to upload: wandb sync {shlex.quote(str(folder))}/wandb/offline-run-*"
            return f"W&B: {run.url}"
    except wandb.Error as error:  # everything is in the folder all the same
        return f"W&B failed: {error}"
