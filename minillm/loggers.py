"""Where metrics go: a CSV file always, W&B where it is wanted."""

import csv
import netrc
import os
import socket
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from lightning.pytorch.loggers import Logger

from minillm.config import LoggerConfig

KEYS = (
    "train/loss", "train/grad_norm", "train/lr", "val/loss", "val/bits_per_byte",
    "perf/tokens_per_sec", "perf/step_ms", "perf/mfu", "perf/data_wait_ms",
    "memory/peak_allocated_gib", "memory/peak_reserved_gib", "tokens",
)  # fmt: skip


class CSVLog(Logger):
    """`metrics.csv`: one row a logged step, one column a key, an empty cell where a thing was not measured.

    What is logged of one step in several calls is one row: the last row is written over while its step goes on. A
    resumed run goes on in the file, after the rows of steps that it will not take again.
    """

    def __init__(self, path: Path, start_step: int) -> None:
        super().__init__()
        kept = []
        if start_step and path.exists():
            with path.open(newline="") as file:
                kept = [row for row in csv.DictReader(file) if int(row["step"]) <= start_step]
        self.file = path.open("w", newline="")
        self.writer = csv.DictWriter(self.file, ("step", *KEYS))
        self.writer.writeheader()
        self.writer.writerows(kept)
        self.file.flush()
        self.row: dict[str, Any] = {}
        self.row_at = self.file.tell()

    @property
    def name(self) -> str:
        return "csv"

    @property
    def version(self) -> str:
        return ""

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        if self.row.get("step") == step:
            self.file.seek(self.row_at)
            self.file.truncate()
        else:
            self.row, self.row_at = {"step": step}, self.file.tell()
        self.row |= metrics
        self.writer.writerow(self.row)
        self.file.flush()

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """The run's folder has its config.yaml."""

    def finalize(self, status: str) -> None:
        self.file.close()


class WandbLog(Logger):
    """A W&B run; its step axis is the optimizer step. Its id is kept in the folder, for a resumed run to go on."""

    def __init__(self, folder: Path, config: LoggerConfig, run_config: dict[str, Any], tags: list[str]) -> None:
        import wandb  # half a second, only where it is wanted

        super().__init__()
        (folder / "wandb").mkdir(exist_ok=True)
        id_file = folder / "wandb" / "run_id"
        run_id = id_file.read_text() if id_file.exists() else uuid.uuid4().hex[:8]
        self.run = wandb.init(
            mode=mode(),
            dir=folder,
            id=run_id,
            resume="allow",
            name=folder.name,
            project=os.environ.get("WANDB_PROJECT") or config.project,
            entity=os.environ.get("WANDB_ENTITY") or config.entity,
            group=os.environ.get("WANDB_RUN_GROUP") or config.group,
            tags=tags,
            config=run_config,
            settings=wandb.Settings(silent=True, console="off", init_timeout=30, disable_git=True, disable_code=True),
        )
        id_file.write_text(run_id)

    @property
    def name(self) -> str:
        return "wandb"

    @property
    def version(self) -> str:
        return self.run.id

    def where(self) -> str:
        """A line for people: where the run can be seen, or how to get it there."""
        if self.run.disabled:
            return "W&B is disabled (WANDB_MODE)"
        if self.run.settings._offline:
            return f"W&B is offline; to upload: wandb sync {Path(self.run.settings.sync_dir).resolve()}"
        return f"W&B: {self.run.url}"

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        self.run.log({key: value for key, value in metrics.items() if value is not None}, step=step)

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Given to wandb.init."""

    def finalize(self, status: str) -> None:
        self.run.finish(exit_code=0 if status == "success" else 1)


def mode() -> Literal["online", "offline", "disabled"]:
    """The mode that neither prompts nor hangs. WANDB_MODE is honoured, but for an "online" that could not be.

    Without a key, or where the server does not answer within two seconds, online is offline.
    """
    chosen = os.environ.get("WANDB_MODE", "online")
    if chosen == "disabled":
        return "disabled"
    if chosen in ("offline", "dryrun"):
        return "offline"
    server = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai"))
    return "online" if has_key(server.hostname or "") and answers(server.hostname, server.port or 443) else "offline"


def has_key(host: str) -> bool:
    """Whether wandb would find an API key for that host without asking."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def answers(host: str | None, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=2):
            return True
    except OSError:
        return False
