"""A training run, from its config to its summary."""

import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

from minillm import hardware, resume, summary
from minillm.apply import compile_blocks, to_bf16
from minillm.attention import attention_kernels
from minillm.callbacks.clock import DeviceTimer, HostTimer, StepClock
from minillm.callbacks.idle import IdleProbe
from minillm.callbacks.metrics import Metrics
from minillm.callbacks.progress import Progress
from minillm.callbacks.sample import Sample
from minillm.callbacks.throughput import Throughput
from minillm.checkpoint import Checkpoints, SyncedIO, last_good
from minillm.config import Config
from minillm.data import BlocksDataModule, Corpus, prepare_corpus
from minillm.errors import UserError
from minillm.failures import explained
from minillm.flops import flops_per_token
from minillm.layers import build_layers, layer_names
from minillm.loggers import CSVLog, WandbLog
from minillm.model import Llama
from minillm.module import LlamaModule
from minillm.signals import Signals, Stopped
from minillm.trainer import build_trainer, quiet_lightning
from minillm.whole import whole_file


def train(config: Config, folder: Path) -> dict[str, Any]:
    """Train as `config` says, in `folder`; with `config.resume` go on from the newest whole checkpoint that is there.

    Returns what `summary.json` holds, which is written for a run that fails or is stopped, too.

    Raises:
        UserError: bad input, or a machine that has run out of something.
        Stopped: SIGTERM or SIGINT came; from the first step on, a checkpoint was written.
    """
    hardware.check(config)
    config = resume.from_anywhere(config)
    saved = resume.newest(folder) if config.resume else None
    if saved is not None:
        resume.check(saved, config)
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
        with Signals() as signals:
            run(config, folder, known, saved, signals)
    except Stopped as stop:
        summary.write(folder, known | {"status": "stopped"})
        again = f"type resume={folder} to go on" if resume.checkpoints(folder) else "there is no checkpoint yet"
        print(f"stopped by {stop.name}: {again}", file=sys.stderr)
        raise
    except BaseException as error:
        told = explained(error, config, last_good(folder)) or error
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
    start_step, starts = 0, []
    if saved is not None:
        resume.check(saved, config, corpus.info["hash"])
        start_step, starts = saved.step, saved.starts
    with whole_file(folder / "config.yaml") as file:
        OmegaConf.save(config.model_dump(), file)
    known["starts"] = [*starts, {"step": start_step, "layers_ran": known["layers_ran"]}]
    summary.write(folder, known | {"status": "running"})
    config = with_vocabulary(config, corpus.vocab_size)

    if config.compile:  # the jobs of a sweep share a process, and graphs do not know with which attention kernels
        torch.compiler.reset()
    module = build_module(config, corpus)
    parameters = sum(p.numel() for p in module.model.parameters())
    print(header(config, known, corpus, parameters), flush=True)

    gpu = hardware.accelerator(config) == "gpu"
    clock: StepClock = StepClock(DeviceTimer() if gpu else HostTimer())
    throughput = Throughput(
        clock,
        warmup_steps=config.trainer.warmup_steps_excluded,
        flops_per_token=flops_per_token(config.model, config.data.sequence_length),
        peak_flops=hardware.peak_flops(known["env"]["device"]) if gpu else None,
        devices=config.trainer.devices,
        idle=IdleProbe() if gpu else None,
    )
    facts = {"config": config.model_dump(mode="json"), "corpus": corpus.info["hash"], "starts": known["starts"]}
    metrics = Metrics(throughput, config.trainer.log_every_steps, partial(last_good, folder))
    sample = Sample(corpus, config.seed)
    trainer = build_trainer(
        config,
        folder,
        profiler=clock,
        logger=build_loggers(config, folder, known, start_step),
        callbacks=[
            throughput,
            metrics,
            Progress(metrics, config.trainer.progress_bar),
            sample,
            Checkpoints(folder / "checkpoints", config, facts, signals),  # last: what a step has to say has been said
        ],
        plugins=[SyncedIO()],
    )
    data = BlocksDataModule(
        corpus,
        config.batch,
        max_steps=config.trainer.max_steps,
        seed=config.seed,
        start_step=start_step,
        num_workers=config.data.num_workers,
        pin_memory=gpu,
    )
    with attention_kernels(config.trainer.attention, config.data.sequence_length):
        try:
            trainer.fit(module, data, ckpt_path=saved.path if saved else None, weights_only=True)
        finally:
            known |= {"steps": trainer.global_step, "tokens": module.tokens}
    if trainer.global_step == start_step:
        raise UserError("no step was taken: nothing was trained")

    known |= {
        "status": "finished",
        "train_loss": metrics.latest["train/loss"],
        "val_loss": metrics.latest["val/loss"],
        "val_bits_per_byte": metrics.latest["val/bits_per_byte"],
        "unigram_bits_per_byte": corpus.info["unigram_bits_per_byte"],
        "timings_valid": not hardware.interpreted(config),
        "parameters": parameters,
        "corpus": corpus.info,
        **throughput.summary(),
    }
    print(summary.table(known))
    for line in (sample.text and f"sample: {sample.text}", summary.hint(known)):
        if line:
            print(line)


def with_vocabulary(config: Config, vocab_size: int) -> Config:
    """The config with the model's vocabulary size filled in from the tokenizer's, where it leaves that open."""
    model = config.model.model_copy(update={"vocab_size": config.model.vocab_size or vocab_size})
    return config.model_copy(update={"model": model})


def build_module(config: Config, corpus: Corpus) -> LlamaModule:
    """The model, as the config wants it done to. The seed determines its weights, on each kind of device."""
    torch.manual_seed(config.seed)
    layers = build_layers(config)
    with torch.device("cuda" if hardware.accelerator(config) == "gpu" else "cpu"):
        model = Llama(config.model, layers)
    if hardware.precision(config) == "bf16-true":
        to_bf16(model)
    if config.compile:
        compile_blocks(model)
    return LlamaModule(config, model, layers.loss, corpus.bits_per_byte)


def build_loggers(config: Config, folder: Path, known: dict[str, Any], start_step: int) -> list[Any]:
    """The CSV file, and W&B where it is wanted; prints where the W&B run is."""
    csv = CSVLog(folder / "metrics.csv", start_step)
    if config.logger.name == "none":
        return [csv]
    run_config = config.model_dump(mode="json") | {
        key: known[key] for key in ("env", "layers_ran", "attention_backend")
    }
    compiled = "compile" if config.compile else "no-compile"
    layers = [f"{layer}={name}" for layer, name in known["layers_ran"].items()]
    tags = [config.model.name, *layers, known["precision"], compiled]
    wandb = WandbLog(folder, config.logger, run_config, tags, before=csv.kept if start_step else None)
    print(wandb.where(), flush=True)
    return [csv, wandb]


def header(config: Config, known: dict[str, Any], corpus: Corpus, parameters: int) -> str:
    """What is about to run, in a few lines."""
    model, info = config.model, corpus.info
    layers = " ".join(f"{layer}={name}" for layer, name in known["layers_ran"].items())
    if hardware.interpreted(config):
        layers += ", in Triton's interpreter: timings mean nothing"
    compiled = ", blocks compiled" if config.compile else ""
    device, attention = known["env"]["device"], known["attention_backend"]
    sequences = config.batch.micro * config.batch.accumulate
    return "\n".join(
        (
            f"model   {model.name}: {parameters:,} parameters, vocabulary {model.vocab_size}",
            f"layers  {layers}",
            f"device  {device}, precision {known['precision']}, attention {attention}{compiled}",
            f"data    {info['source']}: {info['train_tokens']:,} tokens, {info['val_tokens']:,} for validation",
            f"steps   {config.trainer.max_steps} of {sequences} x {config.data.sequence_length} tokens",
        )
    )
