"""What is measured, as it travels from a worker to the runner and into comparison.json. Times in ms, memory in GiB."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from minillm.compare.plan import Plan


class Record(BaseModel):
    """Plain data, the same after a round trip through JSON."""

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="strings")  # a loss may be either


class Losses(Record):
    """Consecutive optimizer steps, and which samples they saw."""

    first_step: int  # 1 is the first of a run
    losses: list[float]
    samples: str  # hash of all sample ids so far, in order


class Ready(Record):
    """A worker has warmed up and waits for its turn."""

    event: Literal["ready"] = "ready"
    env: dict[str, Any]
    corpus: dict[str, Any]
    layers_ran: dict[str, str]
    attention_backend: str | None
    precision: str
    parameters: int
    model_flops_per_token: int
    peak_flops: float | None
    timings_valid: bool
    gpu: str | None  # the device's UUID
    free_memory: float | None  # part of the device's that nobody uses
    warmup: Losses


class Window(Record):
    """A turn: some steps with nothing in between but training."""

    event: Literal["window"] = "window"
    step_ms: list[float]  # on the device's clock
    wait_ms: list[float]  # of these, waiting for data
    tokens: int
    memory: dict[str, float | None]
    trained: Losses

    @property
    def tokens_per_ms(self) -> float:
        return self.tokens / sum(self.step_ms)


class Failed(Record):
    """A worker has ended before it was told to."""

    event: Literal["failed"] = "failed"
    error: str  # one line
    out_of_memory: bool = False
    refused: bool = False  # the user's to change: nothing was trained


class Machine(Record):
    """The machine right after a window, and what others did meanwhile; None where that is not known."""

    clock_mhz: float | None = None
    watts: float | None = None
    celsius: float | None = None
    other_gpu_processes: int | None = None
    other_cpu_share: float | None = None  # of the CPUs that we may use, during the window


class Turn(Record):
    """A window and its place. sweep None: it came first after a start, to settle, and does not count."""

    variant: int
    sweep: int | None
    window: Window
    machine: Machine


class Round(Record):
    """One fresh process of every variant (where they do not fit together: of every window)."""

    number: int
    seed: int  # added to the configured one
    ready: dict[int, Ready]  # by variant
    turns: list[Turn]
    failed: dict[int, Failed]
    seconds: float


class Schedule(Record):
    """What the first start-up decided."""

    rounds: int
    sweeps: int  # windows of each variant in a round; even, so that a drift meets all variants alike
    steps: int  # of a window
    together: bool  # False: not in memory at the same time, whole processes alternate
    seconds: float  # expected, in all


class Measurement(Record):
    """All that was measured so far: what comparison.json keeps raw, and what a continued comparison starts from."""

    plan: Plan
    command: str
    started: str  # ISO 8601
    schedule: Schedule | None = None
    rounds: list[Round] = []
    rounding: Losses | None = None  # the baseline's first seed with another eager norm: what rounding alone makes
