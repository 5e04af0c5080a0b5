"""What is compared: a model, an optimizer and a step of each, under a name.

A name is a model, then what is done to it: `fused`, `eager+compile`, `norm+graph`. Of the models, `fused` has every
layer of ours and `eager` none; `norm`, `rope`, `mlp` and `loss` have that one alone; `plain` is `plain_llama.py` with
PyTorch's own AdamW. `compile` is train.py's, of each block, and for plain torch.compile of the whole model.
"""

import itertools
from collections.abc import Iterator

import torch
from torch import Tensor

from minillm import compose
from minillm.attention import attention_kernels
from minillm.bench.step.graph import captured
from minillm.bench.step.plain_llama import PlainLlama
from minillm.bench.step.step import Step
from minillm.build import build_model
from minillm.config import LAYERS, Config
from minillm.errors import UserError
from minillm.loaded import autocast
from minillm.optim import build_optimizer
from minillm.waterfall.ranges import marked, marked_parts

SETTINGS = {
    "110m": ["experiment=fused_110m"],
    "1b": ["experiment=fused_1b"],
    "tiny": [
        "model=tiny",
        "model.vocab_size=512",
        "model.tie_embeddings=false",
        "data=synthetic",
        "data.sequence_length=64",
        "batch.micro=4",
        "optim.clip_norm=null",
        "trainer.precision=32-true",
    ],
}
LAYERS_OF = {"fused": ["layers=triton"], "eager": ["layers=eager"], "plain": ["layers=eager"]}
LAYERS_OF |= {layer: ["layers=eager", f"{layer}=triton"] for layer in LAYERS}
DONE_TO_IT = ("compile", "graph")
DEFAULT = ("fused", "fused+compile", "eager", "plain+compile")
BASELINE = "plain+compile"
BATCHES = 8  # random ones, taken in turn: a single one would soon be known by heart


def compose_config(model: str, name: str, attention: str) -> Config:
    """The configuration that train.py would have of it. Raises UserError for a name that means nothing."""
    base, *done = name.split("+")
    if base not in LAYERS_OF or len(set(done)) < len(done) or not set(done) <= set(DONE_TO_IT):
        raise UserError(
            f"impl={name} is unknown: choose {', '.join(LAYERS_OF)}, with {' and '.join('+' + d for d in DONE_TO_IT)} "
            f"after it, for example {','.join(DEFAULT)}"
        )
    if "graph" in done and not torch.cuda.is_available():
        raise UserError(f"impl={name} needs a GPU: leave +graph out")
    typed = [*SETTINGS[model], *LAYERS_OF[base], f"trainer.attention={attention}", f"compile={'compile' in done}"]
    (config,) = compose.check(compose.read(typed))
    return config


def random_batches(config: Config, device: torch.device) -> Iterator[Tensor]:
    """Uniform random tokens (B, T + 1), the same for every variant."""
    assert config.model.vocab_size is not None
    shape = (BATCHES, config.batch.micro, config.data.sequence_length + 1)
    generator = torch.Generator().manual_seed(config.seed)
    tokens = torch.randint(config.model.vocab_size, shape, generator=generator)
    return itertools.cycle(tokens.to(device).unbind())


def build(name: str, config: Config, device: torch.device) -> Step:
    """The step of that name; a graph needs a GPU."""
    base, *done = name.split("+")
    step = plain(config, device, "compile" in done) if base == "plain" else ours(config, device)
    return captured(step) if "graph" in done else step


def ours(config: Config, device: torch.device) -> Step:
    """train.py's model, loss, precision and optimizer, without clipping, for one micro-batch."""
    model, loss = build_model(config)
    loss = marked(loss, "loss")

    def mean_loss(tokens: Tensor) -> Tensor:
        targets = tokens[:, 1:]
        with autocast(config):
            return loss(model(tokens[:, :-1]), model.lm_head.weight, targets) / targets.numel()

    return Step(
        mean_loss,
        build_optimizer(model, config.optim, config.seed),
        random_batches(config, device),
        lambda: attention_kernels(config.trainer.attention, config.data.sequence_length, device),
        lambda: marked_parts(model),
    )


def plain(config: Config, device: torch.device, compiled: bool) -> Step:
    """The baseline: all of its parameters in bf16 where ours are, so that PyTorch's AdamW keeps bf16 moments."""
    torch.manual_seed(config.seed)
    with device:
        model = plain_model(config)
    if config.trainer.precision == "bf16-true":
        for parameter in model.parameters():  # model.to would cast the tables of angles, too
            parameter.data = parameter.data.to(torch.bfloat16)
    run = torch.compile(model) if compiled else model
    optim = config.optim
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=optim.lr,
        betas=(optim.beta1, optim.beta2),
        eps=optim.eps,
        weight_decay=optim.weight_decay,
        fused=True,
    )
    return Step(lambda tokens: run(tokens[:, :-1], tokens[:, 1:]), optimizer, random_batches(config, device))


def plain_model(config: Config) -> PlainLlama:
    """In the configuration's shape."""
    shape = config.model
    assert shape.vocab_size is not None
    return PlainLlama(
        vocabulary=shape.vocab_size,
        dim=shape.hidden_size,
        hidden=shape.intermediate_size,
        layers=shape.num_layers,
        heads=shape.num_heads,
        kv_heads=shape.num_kv_heads,
        length=config.data.sequence_length,
        eps=shape.norm_eps,
        theta=shape.rope_theta,
        init_std=shape.init_std,
    )
