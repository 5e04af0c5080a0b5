"""What was typed, made into variants: all combinations of the listed values, in typed order, the first the baseline."""

import itertools
import json
from dataclasses import dataclass
from pathlib import Path

from hydra.core.override_parser.types import ValueType
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from minillm import compose
from minillm.compare.statistics import MIN_ROUNDS
from minillm.config import LAYERS, Config, Count
from minillm.errors import UserError
from minillm.problems import did_you_mean, misnamed

DEFAULT_ROUNDS = 6


class Options(BaseModel):
    """`compare.*`. The descriptions are the command's help."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rounds: int | None = Field(
        default=None,
        ge=MIN_ROUNDS,
        description=f"fresh processes of every variant, {MIN_ROUNDS} at least; {DEFAULT_ROUNDS} unless given",
    )
    minutes: float | None = Field(
        default=None, gt=0, description="how long it may take: sets the rounds, or their length"
    )
    seeds: Count = Field(
        default=3, description="seeds that the rounds take in turn, the same for all variants of a round"
    )
    predicted: Path | None = Field(
        default=None, description="explain.json of explain.py: what it predicts is set beside what is measured"
    )


class Variant(BaseModel):
    """One side of the comparison."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str  # what was typed of it and differs: norm=triton
    config: Config


class Plan(BaseModel):
    """All that is decided before anything runs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    varied: list[str]  # the keys in which the variants may differ
    variants: list[Variant]
    options: Options
    layer_ms: dict[str, float] = {}  # `norm=triton` -> ms of a step that explain.py expects of it

    @property
    def seeds(self) -> int:
        """Fixed where the seed is itself what is compared."""
        return 1 if "seed" in self.varied else self.options.seeds

    @property
    def names(self) -> list[str]:
        return [variant.name for variant in self.variants]


@dataclass(frozen=True)
class Value:
    """One choice of an axis: as it is called, and the overrides that it stands for."""

    name: str
    overrides: list[str]


def make_plan(typed: list[str]) -> Plan:
    """Raises UserError with one line for each thing that is wrong, of all variants together."""
    problems: list[str] = []
    options = read_options([text for text in typed if text.startswith("compare.")], problems)
    axes: dict[str, list[Value]] = {}
    for text in typed:
        if not text.startswith("compare."):
            try:
                axes[text] = axis(text)
            except UserError as error:
                problems.append(str(error))
    keys = [text.partition("=")[0].lstrip("+") for text in axes]
    varied = [key for key, values in zip(keys, axes.values(), strict=True) if len(values) > 1]
    problems += [
        f"{key}= is typed more than once: list its values with commas" for key in set(varied) if keys.count(key) > 1
    ]
    if not varied and not problems:
        problems.append("nothing to compare: list the values of a key with commas, for example norm=eager,triton")
    variants = []
    for choice in itertools.product(*axes.values()):
        try:
            (config,) = compose.check(compose.read([text for value in choice for text in value.overrides]))
        except UserError as error:
            problems += str(error).splitlines()
            continue
        problems += misnamed(config, [text for value in choice for text in value.overrides])
        compared = [value.name for value, values in zip(choice, axes.values(), strict=True) if len(values) > 1]
        variants.append(Variant(name=" ".join(compared), config=config))
    try:
        layer_ms = read_prediction(options.predicted) if options.predicted else {}
    except UserError as error:
        problems.append(str(error))
    if any(variant.config.trainer.strategy != "single" for variant in variants):
        problems.append(
            "trainer.strategy: a comparison runs every variant on one device, in one process; leave it at single"
        )
    if problems:
        raise UserError("\n".join(dict.fromkeys(problems)))
    return Plan(varied=varied, variants=told_apart(variants), options=options, layer_ms=layer_ms)


def read_prediction(path: Path) -> dict[str, float]:
    """Milliseconds of a step by `layer=name`, as explain.py wrote them. Raises UserError where there are none."""
    try:
        predicted = json.loads(path.read_text(encoding="utf-8"))["predicted"]
        return {name: float(ms) for name, ms in predicted["layer_ms"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"compare.predicted={path} holds no prediction ({type(error).__name__}): give the explain.json of "
            "python scripts/explain.py norm=eager,triton, at the model's own shapes"
        ) from error


def read_options(typed: list[str], problems: list[str]) -> Options:
    """`compare.key=value`; what is wrong becomes a line of `problems`."""
    problems += [f"{text} is not understood: type {text}=VALUE" for text in typed if "=" not in text]
    pairs = dict(text.removeprefix("compare.").split("=", 1) for text in typed if "=" in text)
    try:
        return Options.model_validate(pairs)
    except ValidationError as error:
        for detail in error.errors():
            key = str(detail["loc"][0])
            if detail["type"] == "extra_forbidden":
                known = [*Options.model_fields, "resume"]
                meant = did_you_mean("compare.", key, known)
                problems.append(f"compare.{key} is unknown: compare has {', '.join(known)}{meant}")
            else:
                problems.append(f"compare.{key}={detail['input']} {detail['msg'].replace('Input should', 'must')}")
        return Options()


def axis(typed: str) -> list[Value]:
    """The values of `key=v1,v2`; of `key=value` that one. Raises UserError for what cannot be read."""
    key, _, listed = typed.partition("=")
    if key in ("resume", "init_from"):
        raise UserError(f"{typed} is for train.py: a comparison's variants all start anew")
    if typed == "layers=each":
        return each_layer()
    if key == "norm" and ":" in listed:
        return [Value(f"norm={name}", custom_norm(name)) for name in listed.split(",")]
    override = compose.parsed(compose.normalized(typed, multirun=True))
    if not override.is_sweep_override():
        return [Value(typed, [typed])]
    if override.value_type in (ValueType.INTERVAL_SWEEP, ValueType.GLOB_CHOICE_SWEEP):
        raise UserError(f"{typed} is no list: type the values, {key}=first,second")
    return [Value(f"{key}={text}", [f"{key}={text}"]) for text in override.sweep_string_iterator()]


def custom_norm(name: str) -> list[str]:
    """`my_package.my_module:MyNorm` among the values of norm, or one of those that have a name."""
    return ["norm=custom", f"norm.name={name}"] if ":" in name else [f"norm={name}"]


def each_layer() -> list[Value]:
    """`layers=each`: all eager, each layer fused alone, all but one fused, all fused. What a layer is worth on top of
    nothing and on top of everything else differs: the slower the rest, the less it shows."""
    alone = [Value(f"{layer}=triton", ["layers=eager", f"{layer}=triton"]) for layer in LAYERS]
    all_but = [Value(f"all but {layer}", ["layers=triton", f"{layer}=eager"]) for layer in LAYERS]
    return [Value("all eager", ["layers=eager"]), *alone, *all_but, Value("all triton", ["layers=triton"])]


def told_apart(variants: list[Variant]) -> list[Variant]:
    """A value that is typed twice makes an A/A comparison: its later variants get a number."""
    seen: dict[str, int] = {}
    result = []
    for variant in variants:
        count = seen[variant.name] = seen.get(variant.name, 0) + 1
        result.append(variant if count == 1 else variant.model_copy(update={"name": f"{variant.name} #{count}"}))
    return result
