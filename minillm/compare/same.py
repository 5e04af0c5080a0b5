"""What is compared may differ in what was named, and in nothing else."""

from collections.abc import Mapping, Sequence
from typing import Any

from minillm.compare.records import Ready, Round
from minillm.config import LAYERS
from minillm.errors import UserError

# A comparison neither saves nor reports in the middle, and a run's own name for itself changes nothing.
WITHOUT_EFFECT = ("logger", "checkpoint", "resume")
DETERMINE_DATA = ("experiment", "data", "tokenizer", "batch", "seed", "model")


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """`{"norm": {"name": "eager"}}` as `{"norm.name": "eager"}`."""
    result: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        result |= flat(value, f"{name}.") if isinstance(value, Mapping) else {name: value}
    return result


def differences(configs: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The dotted keys in which the configurations differ, with the value of each; None where one lacks the key."""
    all_flat = [flat(config) for config in configs]
    keys = dict.fromkeys(key for values in all_flat for key in values if key.split(".")[0] not in WITHOUT_EFFECT)
    rows = {key: [values.get(key) for values in all_flat] for key in keys}
    return {key: row for key, row in rows.items() if any(value != row[0] for value in row)}


def is_named(key: str, named: Sequence[str]) -> bool:
    """Whether a key of the configuration follows from one of the named keys: itself, its group, or what sets many."""
    group = key.split(".")[0]
    return (
        bool({key, group, "experiment"} & set(named))
        or ("layers" in named and group in LAYERS)
        or any(key.startswith(f"{name}.") for name in named)
    )


def refuse(what: Mapping[str, Sequence[Any]], names: Sequence[str]) -> None:
    """Raise UserError, a line each, for what differs."""
    lines = []
    for key, values in what.items():
        first = {str(value): name for name, value in reversed(list(zip(names, values, strict=True)))}
        shown = ", ".join(f"{value} ({name})" for value, name in reversed(first.items()))
        lines.append(f"not comparable: {key} differs: {shown}")
    if lines:
        raise UserError("\n".join(lines))


def check_configs(configs: Sequence[Mapping[str, Any]], named: Sequence[str], names: Sequence[str]) -> None:
    """Raise UserError where configurations differ in more than the named keys."""
    rows = differences(configs)
    refuse({key: values for key, values in rows.items() if not is_named(key, named)}, names)


def check_surroundings(
    envs: Sequence[Mapping[str, Any]], corpora: Sequence[Mapping[str, Any]], named: Sequence[str], names: Sequence[str]
) -> None:
    """Raise UserError where device, versions or data differ; the data may where a named key determines it."""
    what = {f"env.{key}": values for key, values in differences(envs).items()}
    hashes = [corpus.get("hash") for corpus in corpora]
    if len(set(hashes)) > 1 and not set(DETERMINE_DATA) & {name.split(".")[0] for name in named}:
        what["corpus.hash"] = hashes
    refuse(what, names)


def check_ready(ready: Mapping[int, Ready], named: Sequence[str], names: Sequence[str]) -> None:
    """`check_surroundings` of workers that have started, by variant."""
    workers = ready.values()
    check_surroundings([r.env for r in workers], [r.corpus for r in workers], named, [names[v] for v in ready])


def check_rounds(rounds: Sequence[Round]) -> None:
    """Raise UserError where device or versions changed between rounds: a comparison was continued too late."""
    envs = {one.number: next(iter(one.ready.values())).env for one in rounds if one.ready}
    what = {f"env.{key}": values for key, values in differences(list(envs.values())).items()}
    refuse(what, [f"round {number + 1}" for number in envs])


def check_samples(samples: Mapping[int, str], named: Sequence[str], names: Sequence[str]) -> None:
    """Raise UserError where variants that took the same steps saw other samples; again, unless that was named."""
    if set(DETERMINE_DATA) & {name.split(".")[0] for name in named}:
        return
    if len(set(samples.values())) > 1:
        refuse({"the order of the data": list(samples.values())}, [names[variant] for variant in samples])
