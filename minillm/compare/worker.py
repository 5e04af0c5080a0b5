"""One variant in a process of its own: `python -m minillm.compare.worker`, which only the runner starts.

It reads JSON lines (first the job, then how many steps each turn has) and answers with one line each (records.py). What
training prints goes to the log that the runner made its stderr. When the runner has gone, so has the pipe, and the
worker ends.
"""

import json
import os
import sys
from pathlib import Path
from typing import IO

from pydantic import BaseModel, ConfigDict

from minillm.compare.records import Failed, Losses, Ready, Window
from minillm.config import Config
from minillm.errors import UserError

FOREVER = 10**9  # optimizer steps: how many there are is the runner's to say
MIN_WARMUP = 3  # steps; a first step compiles, a second one meets the first one's allocations


class Job(BaseModel):
    """What to train, and where its files go."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    config: Config
    folder: Path


class RefusedError(Exception):
    """The configuration cannot run here: a sentence for the user, before anything was trained."""


class Pipe:
    """The runner, seen from here."""

    def __init__(self, commands: IO[str], reports: IO[str]) -> None:
        self.commands, self.reports = commands, reports

    def report(self, record: Ready | Window | Failed) -> None:
        self.reports.write(record.model_dump_json() + "\n")
        self.reports.flush()

    def steps(self) -> int:
        line = self.commands.readline()
        return json.loads(line) if line else 0


def train(job: Job, pipe: Pipe) -> None:
    """The ordinary training loop, with neither validation nor checkpoints, in turns. Raises RefusedError."""
    import torch

    from minillm import hardware, requirements
    from minillm.attention import attention_kernels
    from minillm.build import build_data, build_module, build_throughput
    from minillm.callbacks.metrics import Metrics
    from minillm.compare.turns import Turns
    from minillm.csv_log import LOG, CSVLog
    from minillm.data import prepare_corpus
    from minillm.layers import layer_names
    from minillm.nvidia_smi import this_gpu
    from minillm.trainer import build_trainer, quiet_lightning

    quiet_lightning()
    try:
        requirements.check(job.config)
        corpus = prepare_corpus(job.config)
        config = job.config.with_vocabulary(corpus.vocab_size)
        module = build_module(config, corpus)
    except UserError as error:
        raise RefusedError(str(error)) from error
    gpu = hardware.accelerator(config) == "gpu"
    env = hardware.environment("gpu" if gpu else "cpu")
    warmup = max(config.trainer.warmup_steps_excluded, MIN_WARMUP)
    throughput = build_throughput(config, warmup)

    def ready(losses: Losses) -> Ready:
        free, total = torch.cuda.mem_get_info() if gpu else (None, None)
        return Ready(
            env=env,
            corpus=corpus.info,
            layers_ran=layer_names(config),
            attention_backend=hardware.attention_backend(config),
            precision=hardware.precision(config),
            parameters=sum(p.numel() for p in module.model.parameters()),
            model_flops_per_token=throughput.flops_per_token,
            peak_flops=throughput.peak_flops,
            timings_valid=not hardware.interpreted(config),
            gpu=this_gpu() if gpu else None,
            free_memory=free / total if free is not None and total else None,
            warmup=losses,
        )

    loop = config.trainer.model_copy(update={"max_steps": FOREVER, "val_batches": 0})
    endless = config.model_copy(update={"trainer": loop})
    trainer = build_trainer(
        endless,
        job.folder,
        profiler=throughput.clock,
        logger=[CSVLog(job.folder / LOG, 0)],
        callbacks=[
            throughput,
            Metrics(throughput, config.trainer.log_every_steps, lambda: "a comparison keeps no checkpoints"),
            Turns(pipe, throughput, warmup, ready),
        ],
    )
    with attention_kernels(config.trainer.attention, config.data.sequence_length, hardware.device(config)):
        trainer.fit(module, build_data(endless, corpus))


def main() -> None:
    """Exit status 0 when told to stop, 1 after a report of failure."""
    reports = os.fdopen(os.dup(1), "w")  # not inherited by what this process starts
    os.dup2(2, 1)
    pipe = Pipe(sys.stdin, reports)
    try:
        train(Job.model_validate_json(sys.stdin.readline()), pipe)
    except BaseException as error:
        import torch

        text = str(error).strip() or type(error).__name__
        memory = isinstance(error, torch.OutOfMemoryError)
        pipe.report(Failed(error=text.splitlines()[0], out_of_memory=memory, refused=isinstance(error, RefusedError)))
        raise


if __name__ == "__main__":
    main()
