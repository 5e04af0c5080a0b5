"""What a config becomes: the model, its loss, the module that trains it, its data and what measures it."""

import torch

from minillm import distributed, hardware
from minillm.apply import checkpoint_blocks, compile_blocks, to_bf16
from minillm.callbacks.clock import DeviceTimer, HostTimer, StepClock
from minillm.callbacks.idle import IdleProbe
from minillm.callbacks.throughput import Throughput
from minillm.config import Config
from minillm.data import BlocksDataModule, Corpus
from minillm.flops import flops_per_token
from minillm.layers import build_layers
from minillm.layers.loss import Loss
from minillm.model import Llama
from minillm.module import LlamaModule


def build_model(config: Config) -> tuple[Llama, Loss]:
    """The model, as the config wants it done to, and its loss. The seed determines the weights, on each kind of device.

    `config.model.vocab_size` must be set.
    """
    torch.manual_seed(config.seed)
    layers = build_layers(config)
    with hardware.device(config):
        model = Llama(config.model, layers)
    if config.model.activation_checkpointing == "block":
        checkpoint_blocks(model)
    if hardware.precision(config) == "bf16-true":
        to_bf16(model)
    if config.compile:
        compile_blocks(model)
    return model, layers.loss


def build_module(config: Config, corpus: Corpus) -> LlamaModule:
    model, loss = build_model(config)
    return LlamaModule(config, model, loss, corpus.bits_per_byte)


def build_data(config: Config, corpus: Corpus, start_step: int = 0) -> BlocksDataModule:
    """This rank's part."""
    return BlocksDataModule(
        corpus,
        config.batch,
        max_steps=config.trainer.max_steps,
        seed=config.seed,
        start_step=start_step,
        num_workers=config.data.num_workers,
        pin_memory=hardware.accelerator(config) == "gpu",
        rank=distributed.rank(),
        world_size=distributed.world_size(),
    )


def build_throughput(config: Config, warmup_steps: int, idle: IdleProbe | None = None) -> Throughput:
    """Its clock is to be the Trainer's profiler. `config.model.vocab_size` must be set."""
    gpu = hardware.accelerator(config) == "gpu"
    return Throughput(
        StepClock(DeviceTimer() if gpu else HostTimer()),
        warmup_steps=warmup_steps,
        flops_per_token=flops_per_token(config.model, config.data.sequence_length),
        peak_flops=hardware.peak_flops(hardware.device_name("gpu")) if gpu else None,
        devices=config.trainer.devices,
        gpu=gpu,
        idle=idle,
    )
