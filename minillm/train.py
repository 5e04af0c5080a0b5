"""A training run, from its config to its summary."""

import sys
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

from minillm import distributed, hardware, memory, nvidia_smi, requirements, resume, summary
from minillm.attention import attention_kernels
from minillm.build import build_data, build_module, build_throughput
from minillm.callbacks.idle import IdleProbe
from minillm.callbacks.metrics import Metrics
from minillm.callbacks.profile import Profile
from minillm.callbacks.progress import Progress
from minillm.callbacks.sample import Sample
from minillm.callbacks.throughput import PROFILED_STEPS
from minillm.checkpoint import Checkpoints, SyncedIO, last_good
from minillm.config import Config
from minillm.csv_log import LOG, CSVLog, whole_rows
from minillm.data import prepare_corpus
from minillm.errors import UserError
from minillm.failures import explained
from minillm.folders import alone_in
from minillm.header import header
from minillm.init_from import adopted, load_weights
from minillm.layers import layer_names
from minillm.loaded import TOKENIZER
from minillm.ranks import in_group, run_ranks
from minillm.signals import Signals, Stopped
from minillm.trainer import build_trainer, quiet_lightning
from minillm.wandb_log import WandbLog, choices
from minillm.whole import whole_file


def train(config: Config, folder: Path) -> dict[str, Any]:
    """Train as `config` says, in `folder`; with `config.resume` go on from the newest whole checkpoint that is there.

    Returns what `summary.json` holds, which is written for a run that fails or is stopped, too.

    Raises:
        UserError: bad input, or a machine that has run out of something.
        Stopped: SIGTERM or SIGINT came; from the first step on, a checkpoint was written.
    """
    found = resume.state(folder)
    saved = resume.newest(folder) if config.resume else None
    if config.init_from and saved is None:
        config = adopted(config)
    requirements.check(config)
    config = resume.from_anywhere(config)
    if saved is not None:
        resume.check(saved, config)
        whole_rows(folder / LOG)  # a log that cannot be gone on with is refused before anything is written
    elif resume.checkpoints(folder):
        raise UserError(
            f"{folder} already holds a run: type resume={folder} to go on with it, or choose another folder"
        )
    known: dict[str, Any] = {
        "precision": hardware.precision(config),
        "layers_ran": layer_names(config),
        "attention_backend": hardware.attention_backend(config),
        "env": hardware.environment(hardware.accelerator(config)),
    }
    try:
        (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        with alone_in(folder) if distributed.rank() == 0 else nullcontext(), Signals() as signals:
            if resume.state(folder) != found:
                raise UserError(f"another process has just gone on with {folder}: type the command again")
            if saved is None:  # with "status" the folder's summary is this run's; a resumed one's after all checks
                known["status"] = "running"
            if config.trainer.strategy == "single":
                run(config, folder, known, saved, signals)
            elif distributed.launched():
                in_group(run, config, folder, known, saved, signals)
            else:
                corpus = prepare_corpus(config)  # once, and no rank has to wait for another's
                if saved is not None:
                    resume.check(saved, config, corpus.info["hash"])
                known["status"] = "running"
                run_ranks(run, config, folder, known, saved)
    except Stopped as stop:
        if "status" in known:
            summary.write(folder, known | {"status": "stopped"})
        again = f"type resume={folder} to go on" if resume.checkpoints(folder) else "there is no checkpoint yet"
        if distributed.rank() == 0:
            step = f" after step {known['steps']}" if "steps" in known else ""
            print(f"stopped by {stop.name}{step}: {again}", file=sys.stderr)
        raise
    except BaseException as error:
        told = explained(error, config, last_good(folder)) or error
        if "status" in known:
            with suppress(OSError):  # a full disk is told by `error`
                summary.write(folder, known | {"status": "failed", "error": str(told) or type(told).__name__})
        if told is error:
            raise
        raise told from error
    summary.write(folder, known)
    print(folder)
    return known


def run(config: Config, folder: Path, known: dict[str, Any], saved: resume.Saved | None, signals: Signals) -> None:
    """Everything between the checks and the summary, whose parts go to `known` as they become known."""
    quiet_lightning()
    corpus = prepare_corpus(config)
    if len(corpus.val) < config.trainer.devices:
        raise UserError(
            f"{len(corpus.val)} validation blocks cannot be shared out among trainer.devices={config.trainer.devices}: "
            "give more text, or raise data.val_fraction"
        )
    start_step, starts = 0, []
    if saved is not None:
        resume.check(saved, config, corpus.info["hash"])
        start_step, starts = saved.step, saved.starts
    if distributed.rank() == 0:
        with whole_file(folder / "config.yaml") as file:
            OmegaConf.save(config.model_dump(), file)
        if corpus.tokenizer is not None:
            with whole_file(folder / TOKENIZER) as file:
                file.write(corpus.tokenizer.to_str())
    known |= {"status": "running", "starts": [*starts, {"step": start_step, "layers_ran": known["layers_ran"]}]}
    summary.write(folder, known)
    config = config.with_vocabulary(corpus.vocab_size)

    gpu = hardware.accelerator(config) == "gpu"
    needed = memory.check(config, memory.free_bytes() if gpu else None)
    if config.compile:  # the jobs of a sweep share a process, and graphs do not know with which attention kernels
        torch.compiler.reset()
    module = build_module(config, corpus)
    if config.init_from and saved is None:
        load_weights(module.model, config)
    parameters = sum(p.numel() for p in module.model.parameters())
    print(header(config, known, corpus, parameters, needed), flush=True)
    for change in resume.changes(saved, config) if saved is not None else ():
        print(change, flush=True)

    idle = IdleProbe(PROFILED_STEPS) if gpu and not config.trainer.profile_steps else None  # one profiler at a time
    throughput = build_throughput(config, config.trainer.warmup_steps_excluded, idle)
    facts = {"config": config.model_dump(mode="json"), "corpus": corpus.info["hash"], "starts": known["starts"]}
    metrics = Metrics(throughput, config.trainer.log_every_steps, partial(last_good, folder))
    sample = Sample(corpus, config.seed, folder / "samples.txt")
    trainer = build_trainer(
        config,
        folder,
        profiler=throughput.clock,
        logger=build_loggers(config, folder, known, start_step) if distributed.rank() == 0 else [],
        callbacks=[
            *([Profile(folder, config.trainer.profile_steps, gpu)] if config.trainer.profile_steps else []),
            throughput,
            metrics,
            Progress(metrics, config.trainer.progress_bar),
            sample,
            Checkpoints(folder / "checkpoints", config, facts, signals),  # last: what a step has to say has been said
        ],
        plugins=[SyncedIO()],
    )
    data = build_data(config, corpus, start_step)
    with attention_kernels(config.trainer.attention, config.data.sequence_length, hardware.device(config)):
        try:
            trainer.fit(module, data, ckpt_path=saved.path if saved else None, weights_only=True)
        finally:
            known |= {"steps": trainer.global_step, "tokens": module.tokens}
    if trainer.global_step == start_step:
        raise UserError("no step was taken: nothing was trained")
    disturbance = nvidia_smi.disturbance() if gpu else None

    known |= {
        "status": "finished",
        "train_loss": metrics.latest["train/loss"],
        "val_loss": metrics.latest["val/loss"],
        "val_bits_per_byte": metrics.latest["val/bits_per_byte"],
        "unigram_bits_per_byte": corpus.info["unigram_bits_per_byte"],
        "timings_valid": not hardware.interpreted(config) and not config.trainer.profile_steps,
        "parameters": parameters,
        "corpus": corpus.info,
        **throughput.summary(),
    }
    print(summary.table(known))
    for line in (sample.text and f"sample: {sample.text}", summary.hint(known), disturbance):
        if line:
            print(line)


def build_loggers(config: Config, folder: Path, known: dict[str, Any], start_step: int) -> list[Any]:
    """The CSV file, and W&B where it is wanted; prints where the W&B run is."""
    csv = CSVLog(folder / LOG, start_step)
    if config.logger.name == "none":
        return [csv]
    run_config = config.model_dump(mode="json") | {
        key: known[key] for key in ("env", "layers_ran", "attention_backend")
    }
    tags = choices(config, known["layers_ran"], known["precision"])
    wandb = WandbLog(folder, config.logger, run_config, tags, before=csv.kept if start_step else None)
    print(wandb.where(), flush=True)
    return [csv, wandb]
