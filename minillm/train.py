"""A training run, from its config to its summary."""

import logging
import warnings
from pathlib import Path
from typing import Any

import torch
from lightning import Trainer

from minillm import checkpoint, hardware, summary
from minillm.apply import compile_blocks, to_bf16
from minillm.callbacks.clock import DeviceTimer, HostTimer, StepClock
from minillm.callbacks.idle import IdleProbe
from minillm.callbacks.metrics import Metrics
from minillm.callbacks.progress import Progress
from minillm.callbacks.sample import Sample
from minillm.callbacks.throughput import Throughput
from minillm.config import Config
from minillm.data import BlocksDataModule, Corpus, prepare_corpus
from minillm.errors import UserError
from minillm.flops import flops_per_token
from minillm.layers import loss
from minillm.layers.norm import build_norm
from minillm.loggers import CSVLog, WandbLog
from minillm.model import Llama
from minillm.module import LlamaModule


def train(config: Config, folder: Path) -> dict[str, Any]:
    """Train as `config` says, in `folder`; with `config.resume` go on from the checkpoint that is there.

    Returns what `summary.json` holds, which is written for a run that fails, too. Raises UserError for bad input.
    """
    hardware.check(config)
    last = folder / "checkpoints" / "last.ckpt"
    if config.resume:
        checkpoint.resumable_step(last, config)
    elif last.exists():
        raise UserError(
            f"{folder} already holds a run: type resume={folder} to go on with it, or choose another folder"
        )
    folder.mkdir(parents=True, exist_ok=True)
    known: dict[str, Any] = {
        "precision": hardware.precision(config),
        "layers_ran": {"norm": config.norm.name, "rope": "eager", "mlp": "eager", "loss": "eager"},
        "env": hardware.environment(hardware.accelerator(config)),
    }
    try:
        known |= run(config, folder, known)
    except BaseException as error:
        message = str(error) or type(error).__name__
        summary.write(folder, known | {"status": "failed", "error": message})
        raise
    summary.write(folder, known)
    print(folder)
    return known


def run(config: Config, folder: Path, known: dict[str, Any]) -> dict[str, Any]:
    """Everything between the checks and the summary; returns the summary's part that it knows."""
    quiet_lightning()
    corpus = prepare_corpus(config)
    config = with_vocabulary(config, corpus.vocab_size)
    last = folder / "checkpoints" / "last.ckpt"
    start_step = checkpoint.resumable_step(last, config) if config.resume else 0

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
    checkpoints = checkpoint.Checkpoints(folder / "checkpoints", config.checkpoint)
    metrics = Metrics(throughput, config.trainer.log_every_steps, checkpoints.last_good)
    sample = Sample(corpus, config.seed)
    trainer = build_trainer(
        config,
        folder,
        profiler=clock,
        logger=build_loggers(config, folder, known, start_step),
        callbacks=[throughput, metrics, checkpoints, Progress(metrics, config.trainer.progress_bar), sample],
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
    trainer.fit(module, data, ckpt_path=last if start_step else None, weights_only=True)
    if trainer.global_step == start_step:
        raise UserError("no step was taken: nothing was trained")

    result = {
        "status": "finished",
        "steps": trainer.global_step,
        "tokens": module.tokens,
        "train_loss": metrics.latest["train/loss"],
        "val_loss": metrics.latest["val/loss"],
        "val_bits_per_byte": metrics.latest["val/bits_per_byte"],
        "unigram_bits_per_byte": corpus.info["unigram_bits_per_byte"],
        "timings_valid": not hardware.interpreted(config),
        "parameters": parameters,
        "corpus": corpus.info,
        **throughput.summary(),
    }
    print(summary.table(result))
    for line in (sample.text and f"sample: {sample.text}", summary.hint(result)):
        if line:
            print(line)
    return result


def with_vocabulary(config: Config, vocab_size: int) -> Config:
    """The config with the model's vocabulary size filled in from the tokenizer's, where it leaves that open."""
    model = config.model.model_copy(update={"vocab_size": config.model.vocab_size or vocab_size})
    return config.model_copy(update={"model": model})


def build_module(config: Config, corpus: Corpus) -> LlamaModule:
    """The model, as the config wants it done to. The seed determines its weights, on each kind of device."""
    torch.manual_seed(config.seed)
    residual_dtype = torch.float32 if config.model.residual_dtype == "float32" else None
    with torch.device("cuda" if hardware.accelerator(config) == "gpu" else "cpu"):
        model = Llama(config.model, lambda dim: build_norm(config.norm, dim, config.model.norm_eps, residual_dtype))
    if hardware.precision(config) == "bf16-true":
        to_bf16(model)
    if config.compile:
        compile_blocks(model)
    return LlamaModule(config, model, loss.eager, corpus.bits_per_byte)


def build_loggers(config: Config, folder: Path, known: dict[str, Any], start_step: int) -> list[Any]:
    """The CSV file, and W&B where it is wanted; prints where the W&B run is."""
    csv = CSVLog(folder / "metrics.csv", start_step)
    if config.logger.name == "none":
        return [csv]
    run_config = config.model_dump(mode="json") | {"env": known["env"], "layers_ran": known["layers_ran"]}
    compiled = "compile" if config.compile else "no-compile"
    tags = [config.model.name, f"norm={config.norm.name}", known["precision"], compiled]
    wandb = WandbLog(folder, config.logger, run_config, tags)
    print(wandb.where(), flush=True)
    return [csv, wandb]


def build_trainer(config: Config, folder: Path, **parts: Any) -> Trainer:
    """Lightning's Trainer from the config. Its epoch is the whole run; callbacks of ours save, log and draw the bar."""
    precision = hardware.precision(config)
    return Trainer(
        accelerator=hardware.accelerator(config),
        devices=config.trainer.devices,
        precision="32-true" if precision == "bf16-true" else precision,  # see apply.to_bf16
        max_steps=config.trainer.max_steps,
        max_epochs=-1,
        val_check_interval=config.trainer.val_every_steps,
        check_val_every_n_epoch=None,
        limit_val_batches=config.trainer.val_batches,
        num_sanity_val_steps=0,
        log_every_n_steps=1,  # when it lets loggers save; what is logged, and when, is Metrics'
        deterministic=config.trainer.deterministic,
        use_distributed_sampler=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
        **parts,
    )


def quiet_lightning() -> None:
    """Silence what Lightning says about itself, each warning by its text."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    for text in (
        "The '.*_dataloader' does not have many workers",  # reading memory-mapped blocks takes microseconds
        "`isinstance.treespec, LeafSpec.` is deprecated",  # its own use of torch
        "You're resuming from a checkpoint that ended before the epoch ended",  # our sampler starts at the right step
    ):
        warnings.filterwarnings("ignore", text)


def header(config: Config, known: dict[str, Any], corpus: Corpus, parameters: int) -> str:
    """What is about to run, in a few lines."""
    model, info = config.model, corpus.info
    norm = config.norm.name
    if hardware.interpreted(config):
        norm += " in Triton's interpreter: its timing means nothing"
    compiled = ", blocks compiled" if config.compile else ""
    sequences = config.batch.micro * config.batch.accumulate
    return "\n".join(
        (
            f"model   {model.name}: {parameters:,} parameters, vocabulary {model.vocab_size}, norm={norm}",
            f"device  {known['env']['device']}, precision {known['precision']}{compiled}",
            f"data    {info['source']}: {info['train_tokens']:,} tokens, {info['val_tokens']:,} for validation",
            f"steps   {config.trainer.max_steps} of {sequences} x {config.data.sequence_length} tokens",
        )
    )
