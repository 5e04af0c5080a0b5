"""What a run asks for and this machine has not: a sentence each, all told together before any work is done."""

import os
from collections.abc import Iterator

import torch

from minillm import distributed, hardware
from minillm.config import Config
from minillm.errors import UserError
from minillm.layers import build_layers, triton_layers


def check(*configs: Config) -> None:
    """Raise UserError with one line for each thing that one of the configurations asks and this machine has not."""
    problems = dict.fromkeys(problem for config in configs for problem in missing(config))
    if problems:
        raise UserError("\n".join(problems))


def missing(config: Config) -> Iterator[str]:
    yield from layers(config)
    yield from processes(config)
    if hardware.accelerator(config) == "gpu":
        yield from gpu(config)
    else:
        yield from cpu(config)


def layers(config: Config) -> Iterator[str]:
    try:
        build_layers(config)
    except UserError as error:
        yield str(error)


def processes(config: Config) -> Iterator[str]:
    trainer = config.trainer
    if not distributed.launched():
        return
    started = distributed.world_size()
    if trainer.strategy == "single" or trainer.devices != started:
        yield (
            f"torchrun has started {started} processes for trainer.devices={trainer.devices}: type trainer=ddp or "
            f"trainer=fsdp with trainer.devices={started}, or leave torchrun out, which is not needed"
        )
    if os.environ.get("LOCAL_WORLD_SIZE", str(started)) != str(started):
        yield "torchrun has started processes on several machines: a run takes devices of one"


def gpu(config: Config) -> Iterator[str]:
    compiled = [
        *triton_layers(config),
        *(["norm=compiled"] if config.norm.name == "compiled" else []),
        *(["compile=true"] if config.compile else []),
    ]
    if compiled and hardware.c_compiler() is None:
        yield (
            f"{' '.join(compiled)} is compiled on the GPU's first use and needs a C compiler, and none was found: "
            "install gcc (or set CC), or use layers=eager norm=torch compile=false"
        )
    if not torch.cuda.is_available():
        yield f"trainer.accelerator=gpu, but {hardware.why_no_gpu()}; without it use trainer=cpu"
        return  # what else a GPU would lack is not known
    if config.trainer.devices > torch.cuda.device_count():
        yield f"trainer.devices={config.trainer.devices}, but {torch.cuda.device_count()} GPU(s) can be used"
    precision = hardware.precision(config)
    if precision.startswith("bf16") and (capability := torch.cuda.get_device_capability()) < (8, 0):
        yield (
            f"trainer.precision={precision} needs compute capability 8.0, {torch.cuda.get_device_name()} "
            f"has {'.'.join(map(str, capability))}: use trainer.precision=16-mixed"
        )
    yield from attention(config)


def cpu(config: Config) -> Iterator[str]:
    ours = triton_layers(config)
    if hardware.precision(config) == "16-mixed":
        yield "trainer.precision=16-mixed needs a GPU: on a CPU use 32-true, bf16-mixed or bf16-true"
    if ours and torch.cuda.is_available():
        yield (
            f"trainer=cpu {' '.join(ours)} beside a usable GPU: Triton compiles for the GPU here; use "
            "layers=eager, or hide the GPU (CUDA_VISIBLE_DEVICES= ) to run the kernels in Triton's interpreter"
        )
    yield from attention(config)


def attention(config: Config) -> Iterator[str]:
    wanted = config.trainer.attention
    if wanted != "auto" and hardware.attention_backend(config) != wanted:
        device = hardware.device_name(hardware.accelerator(config))
        yield (
            f"trainer.attention={wanted} cannot run here ({device}, {hardware.precision(config)}, head dimension "
            f"{config.model.head_dim}): use trainer.attention=auto"
        )
