"""The options of op=step."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from minillm.bench.config import Strings
from minillm.bench.step.variants import DEFAULT


class StepConfig(BaseModel):
    """What is measured. The descriptions are the command's help."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    op: Literal["step"] = Field(description="step: the whole training step")
    model: Literal["110m", "1b", "tiny"] = Field(
        description="110m, 1b: as experiment=fused_110m, fused_1b has it; tiny: to try it anywhere", examples=["110m"]
    )
    impl: Strings = Field(
        DEFAULT,
        description="fused, eager, plain, or one layer of ours: norm, rope, mlp, loss; +compile, +graph after it; "
        f"{','.join(DEFAULT)} unless given",
    )
    attention: Literal["auto", "cudnn", "flash"] = Field("auto", description="kernels of attention, in all but plain")
    rounds: Annotated[int, Field(ge=2)] = Field(4, description="blocks of steps that each takes, in turns")
    out: Path | None = Field(
        None,
        validation_alias=AliasChoices("out", "hydra.run.dir"),
        description="folder for bench.json and bench.md; runs/<date>/<time>_bench_step unless given",
    )
