"""The configuration as types: what every value may be. What cannot be combined is in `combinations.py`.

Hydra composes a dictionary from `configs/`; `Config` is the only gate through which it enters the program, by way of
`problems.validate`, which reports everything at once: a run with three mistakes needs one correction, not three.
"""

import re
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

Count = Annotated[int, Field(ge=1)]
Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]
LAYERS = ("norm", "rope", "mlp", "loss")  # sections that name a layer's implementation
NORMS = ("textbook", "eager", "torch", "compiled", "triton_simple", "triton")
# Of the model's section: what a trained model may be given anew, its weights mean the same.
NOT_SHAPE = frozenset({"name", "residual_dtype", "init_std", "activation_checkpointing"})
END_TOKEN = "<|endoftext|>"
Precision = Literal["auto", "32-true", "16-mixed", "bf16-mixed", "bf16-true"]


class Section(BaseModel):
    """A group of values: types are exact, unknown names are refused, nothing changes after it was checked."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ModelConfig(Section):
    """The shape of the Llama."""

    name: str
    hidden_size: Count
    intermediate_size: Count  # width of the SwiGLU's two branches
    num_layers: Count
    num_heads: Count
    num_kv_heads: Count  # fewer than num_heads: grouped-query attention
    vocab_size: Count | None  # None: the tokenizer's; else at least that
    tie_embeddings: bool
    norm_eps: Annotated[float, Field(gt=0)]
    rope_theta: Annotated[float, Field(gt=0)]
    residual_dtype: Literal["float32"] | None  # None: the activations' dtype
    init_std: Annotated[float, Field(gt=0)]  # of every matrix; those that write to the stream are scaled down by depth
    activation_checkpointing: Literal["none", "block"] = "none"  # block: keep its inputs, compute the rest again

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_heads

    @model_validator(mode="after")
    def heads_fit(self) -> "ModelConfig":
        if self.hidden_size % self.num_heads or self.head_dim % 2:
            raise ValueError(
                f"model.hidden_size={self.hidden_size} must be an even number (RoPE turns pairs) times "
                f"model.num_heads={self.num_heads}"
            )
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"model.num_heads={self.num_heads} must be a multiple of model.num_kv_heads={self.num_kv_heads}"
            )
        return self


class NormConfig(Section):
    """Which RMSNorm runs."""

    name: Annotated[str, Field(examples=["my_package.my_module:MyNorm"])]  # one of NORMS, or your own
    fuse_residual: bool = True  # triton only: add and normalise in one kernel

    @field_validator("name")
    @classmethod
    def exists(cls, name: str) -> str:
        if name not in NORMS and not re.fullmatch(r"[\w.]+:\w+", name):
            raise ValueError(f"is unknown: choose {', '.join(NORMS)}, or package.module:Name of your own")
        return name


class RopeConfig(Section):
    """What turns the packed projection into rotated queries and keys."""

    name: Literal["eager", "triton"]


class MLPConfig(Section):
    """What runs the MLP from its packed branches to its output."""

    name: Literal["eager", "triton"]


class LossConfig(Section):
    """What turns hidden states into the loss."""

    name: Literal["eager", "torch", "triton"]


class DataConfig(Section):
    """Where the text comes from and how it is cut."""

    name: Literal["stdlib", "text", "hub", "synthetic"]
    sequence_length: Annotated[int, Field(ge=2)]  # tokens a block
    val_fraction: Annotated[float, Field(gt=0.0, lt=1.0)]  # of the documents
    num_workers: Annotated[int, Field(ge=0)]
    files: list[str] = []  # text: paths or globs of .txt .jsonl .parquet
    dataset: str | None = None  # hub: name on the Hugging Face hub
    subset: str | None = None  # hub: configuration of the data set
    split: str = "train"  # hub
    text_column: str = "text"  # text (jsonl, parquet) and hub
    synthetic_tokens: Count = 2_000_000  # synthetic
    train_blocks: Count | None = None  # train on the first so many blocks alone; None: on all

    @field_validator("files", mode="before")
    @classmethod
    def one_file(cls, files: object) -> object:
        return [files] if isinstance(files, str) else files

    @model_validator(mode="after")
    def source_is_named(self) -> "DataConfig":
        if self.name == "text" and not self.files:
            raise ValueError("data=text needs data.files=..., paths or globs of .txt, .jsonl or .parquet files")
        if self.name == "hub" and not self.dataset:
            raise ValueError("data=hub needs data.dataset=..., the name of a data set on the Hugging Face hub")
        return self


class TokenizerConfig(Section):
    """A byte-level BPE, trained on the corpus or loaded."""

    path: str | None  # tokenizer.json to load; None: train one
    vocab_size: Annotated[int, Field(ge=257)]  # 256 bytes and the end token at least
    end_token: str = END_TOKEN  # stands between documents


class BatchConfig(Section):
    """Sequences of an optimizer step, on each device: micro x accumulate."""

    micro: Count
    accumulate: Count


class OptimConfig(Section):
    """AdamW and its learning-rate schedule."""

    lr: Annotated[float, Field(gt=0)]
    min_lr_ratio: Annotated[float, Field(ge=0, le=1)]  # learning rate at the end / at the top
    schedule: Literal["cosine", "wsd", "constant"]
    warmup_steps: Annotated[int, Field(ge=0)]
    decay_fraction: Annotated[float, Field(ge=0, le=1)]  # wsd: part of the steps that decays
    beta1: Fraction
    beta2: Fraction
    eps: Annotated[float, Field(gt=0)]
    weight_decay: Annotated[float, Field(ge=0)]  # matrices only
    clip_norm: Annotated[float, Field(gt=0)] | None  # None: no clipping


class TrainerConfig(Section):
    """How long, on what, in which precision."""

    accelerator: Literal["auto", "cpu", "gpu"]
    strategy: Literal["single", "ddp", "fsdp"] = "single"  # how devices share the work, each with its own process
    devices: Count
    precision: Precision
    attention: Literal["auto", "cudnn", "flash"]  # kernels of scaled_dot_product_attention; auto: the fastest
    max_steps: Count  # optimizer steps
    val_every_steps: Count
    val_batches: Count  # batches of a validation, at most
    log_every_steps: Count
    warmup_steps_excluded: Annotated[int, Field(ge=0)]  # from throughput and peak memory: compiling, allocator, clocks
    deterministic: bool
    progress_bar: bool
    profile_steps: Annotated[int, Field(ge=0)] = 0  # the last so many are recorded, and their timings mean nothing

    @model_validator(mode="after")
    def devices_share(self) -> "TrainerConfig":
        if self.devices > 1 and self.strategy == "single":
            raise ValueError(f"trainer.devices={self.devices} needs trainer=ddp or trainer=fsdp, or stays at 1")
        if (self.strategy, self.precision) == ("fsdp", "16-mixed"):
            raise ValueError("trainer.precision=16-mixed cannot be sharded: use trainer=ddp, or bf16-mixed")
        return self


class CheckpointConfig(Section):
    """When files are written, and how many are kept."""

    every_steps: Count
    every_minutes: Annotated[float, Field(gt=0)] | None
    keep: Count  # newest ones, besides the best


class LoggerConfig(Section):
    """W&B or nothing; a CSV file is always written."""

    name: Literal["wandb", "none"]
    project: str = "minillm"
    entity: str | None = None
    group: str | None = None


class Config(Section):
    """A whole run."""

    model: ModelConfig
    norm: NormConfig
    rope: RopeConfig
    mlp: MLPConfig
    loss: LossConfig
    data: DataConfig
    tokenizer: TokenizerConfig
    batch: BatchConfig
    optim: OptimConfig
    trainer: TrainerConfig
    checkpoint: CheckpointConfig
    logger: LoggerConfig
    compile: bool  # torch.compile of every block, in place
    seed: Annotated[int, Field(ge=0, lt=2**32)]
    resume: str | None  # last | a run's folder
    init_from: str | None = None  # a Llama in Hugging Face's format: a folder, or its name on the hub

    def with_vocabulary(self, size: int) -> "Config":
        """The config with the model's vocabulary size filled in where it is left open: in general the tokenizer's."""
        model = self.model.model_copy(update={"vocab_size": self.model.vocab_size or size})
        return self.model_copy(update={"model": model})
