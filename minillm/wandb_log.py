"""Metrics in Weights & Biases: online where it can be, offline where not, and never in a run's way."""

import json
import logging
import netrc
import os
import shlex
import socket
import subprocess
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from lightning.pytorch.loggers import Logger

from minillm.config import Config, LoggerConfig
from minillm.csv_log import KEYS
from minillm.whole import whole_file

if TYPE_CHECKING:
    from wandb import Run

Mode = Literal["online", "offline", "disabled"]
CLOUD = "https://api.wandb.ai"


class WandbLog(Logger):
    """A W&B run; its step axis is the optimizer step. Its id is kept in the folder, for a resumed run to go on.

    A step that W&B has is not logged again. What a kill took from its memory it gets from the rows of the CSV file.
    """

    def __init__(
        self,
        folder: Path,
        config: LoggerConfig,
        run_config: dict[str, Any],
        tags: list[str],
        before: list[dict[str, str]] | None,
    ) -> None:
        """before: the rows (of `CSVLog`) that a resumed run goes on after; None in a new run."""
        super().__init__()
        self.folder = folder / "wandb"
        self.folder.mkdir(exist_ok=True)
        id_file = self.folder / "run_id"
        run_id = id_file.read_text() if before is not None and id_file.exists() else uuid.uuid4().hex[:8]
        offline_until = last_offline_step(self.folder, run_id)
        self.run = start_wandb(
            folder,
            config,
            id=run_id,
            resume="allow",
            name=folder.name,
            tags=tags,
            config=run_config,
            allow_val_change=True,  # a run may go on with another norm
        )
        with whole_file(id_file) as file:
            file.write(run_id)
        self.has_until = offline_until if self.run.offline else self.run.starting_step - 1
        for row in before or []:
            self.log_metrics({key: float(row[key]) for key in KEYS if row[key]}, int(row["step"]))

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
            parts = f"{shlex.quote(str(self.folder.resolve()))}/offline-run-*-{self.run.id}"  # one each time it went on
            return f"W&B is offline; to upload: wandb sync {parts}"
        return f"W&B: {self.run.url}"

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        if step is None or step > self.has_until:
            self.run.log({key: value for key, value in metrics.items() if value is not None}, step=step)

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Given to wandb.init."""

    def finalize(self, status: str) -> None:
        self.run.finish(exit_code=0 if status == "success" else 1)


def start_wandb(folder: Path, logger: LoggerConfig, **about: Any) -> "Run":
    """A W&B run with its files in the folder, that says nothing, asks nothing and hangs at nothing.

    `about` goes to wandb.init. WANDB_PROJECT, WANDB_ENTITY and WANDB_RUN_GROUP win over the config. Where the server
    does not take it (it refuses the key, gives no answer, has no such address), it is written offline, with a warning.
    """
    import wandb  # half a second, only where it is wanted

    def init(mode: Mode) -> "Run":
        wandb.setup(wandb.Settings(silent=True))  # for what it says before there is a run
        return wandb.init(
            mode=mode,
            dir=folder,
            project=os.environ.get("WANDB_PROJECT") or logger.project,
            entity=os.environ.get("WANDB_ENTITY") or logger.entity,
            group=os.environ.get("WANDB_RUN_GROUP") or logger.group,
            settings=wandb.Settings(silent=True, console="off", init_timeout=30, disable_git=True, disable_code=True),
            **about,
        )

    chosen = mode()
    try:
        return init(chosen)
    except Exception as error:  # of many kinds
        reason = " ".join(str(error).split()) or type(error).__name__
        print(f"warning: W&B does not take this run ({reason}): it is written offline", file=sys.stderr)
        chosen = "offline" if chosen == "online" else chosen
        if isinstance(error, ValueError):  # the address is none: W&B looks at it offline, too
            os.environ |= {"WANDB_BASE_URL": CLOUD, "WANDB_MODE": chosen}
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # W&B's telemetry is not taken either
        wandb.teardown()  # its service holds on to the run's id
        return init(chosen)


def choices(config: Config, layers_ran: Mapping[str, str], precision: str) -> list[str]:
    """The choices of a run, as W&B's tags (which have 64 characters at most)."""
    layers = [f"{layer}={name}" for layer, name in layers_ran.items()]
    compiled = "compile" if config.compile else "no-compile"
    return [tag[:64] for tag in (config.model.name, *layers, precision, compiled)]


def last_offline_step(folder: Path, run_id: str) -> int:
    """The last step in the offline files of a W&B run; 0 where there is none."""
    for file in sorted(folder.glob(f"offline-run-*-{run_id}/*.wandb"), reverse=True):  # the newest first, by its name
        command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(file)]
        lines = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout.splitlines()
        records = [record for record in map(json.loads, lines) if record["type"] == "history"]
        if records:
            return max(int(record["history"]["item"]["_step"]) for record in records)
    return 0


def mode() -> Mode:
    """The mode that neither prompts nor hangs. WANDB_MODE is honoured, but for an "online" that could not be.

    Without a key, or where the server does not answer within two seconds, online is offline.
    """
    chosen = os.environ.get("WANDB_MODE", "online")
    if chosen == "disabled":
        return "disabled"
    if chosen in ("offline", "dryrun"):
        return "offline"
    try:
        server = urlsplit(os.environ.get("WANDB_BASE_URL", CLOUD))
        host, port = server.hostname or "", server.port or (80 if server.scheme == "http" else 443)
    except ValueError:  # no address: W&B says so
        return "offline"
    return "online" if host and has_key(host) and answers(host, port) else "offline"


def has_key(host: str) -> bool:
    """Whether wandb would find an API key for that host without asking."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def answers(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=2):
            return True
    except OSError:
        return False
