"""The run: count, and on a GPU time, profile and take whole steps."""

from collections.abc import Callable, Iterable
from pathlib import Path

import torch

from kernels.resources import Resources, resources
from minillm import hardware, requirements
from minillm.bench.op import Function, Inputs
from minillm.bench.passes import forward_and_backward
from minillm.bench.roofs import copy_roof
from minillm.bench.runner import brief
from minillm.bench.timing import DeviceClock
from minillm.errors import UserError
from minillm.explain import claims, measure, walk
from minillm.explain.card import H200, Card, this_card
from minillm.explain.count import Counted, count
from minillm.explain.plan import Plan, make_plan
from minillm.explain.results import Explained, Explanation, Found
from minillm.explain.step import whole_steps
from minillm.explain.subjects import OPAQUE, OPAQUE_WITHOUT_A_GPU, Subject, subjects


def run(plan: Plan, command: str, folder: Path, progress: Callable[[str], None]) -> Explanation:
    """Raises UserError, before any work, for what cannot be."""
    gpu = torch.cuda.is_available()
    looked_at = subjects(plan.config, plan.layer, plan.shape, plan.dtype)
    if gpu:
        requirements.check(*plan.configs.values())
    folder.mkdir(parents=True, exist_ok=True)
    card = this_card() if gpu else H200
    explanation = Explanation(plan, command, hardware.environment("gpu" if gpu else "cpu"), card, measured=gpu)
    device = torch.device("cuda" if gpu else "meta")
    clock = DeviceClock(device) if gpu else None
    if clock is not None:
        explanation.roof = copy_roof(clock, device).gb_per_second
        progress(f"copy roof {explanation.roof:.0f} GB/s")
    for subject in looked_at:
        progress(f"looking at {subject.title}")
        explanation.layers.append(explain(plan, subject, card, device, clock, folder))
    example = counts(claims.SHAPE, card) if plan.layer == "norm" else {}
    walked = counts(plan.shape, card) if example and plan.shape and walk.is_small(plan.shape) else {}
    found = [f.counted for explained in explanation.layers for f in explained.found]
    explanation.resources = compiled([*found, *example.values(), *walked.values()], card)
    if example:
        explanation.claims = claims.claims(example, explanation.resources, card)
    if plan.shape and walked:
        explanation.walk = walk.walk(plan.shape, walked, explanation.resources, card)
    if explanation.roof is not None and plan.shape is None:
        explanation.steps = whole_steps(plan.layer, plan.configs, device, explanation.roof, progress)
    return explanation


def explain(
    plan: Plan, subject: Subject, card: Card, device: torch.device, clock: DeviceClock | None, folder: Path
) -> Explained:
    """All implementations of one subject. One that fails is left with its reason, the others go on."""
    opaque = OPAQUE if clock is not None else OPAQUE_WITHOUT_A_GPU
    result, inputs = Explained(subject, []), subject.draw(device)
    runnable: dict[str, Function] = {}
    for name, config in plan.configs.items():
        found = Found(name)
        result.found.append(found)
        try:
            function = subject.build(config)
            if clock is not None:
                runnable[name] = ready(function, inputs)
            if (plan.layer, name) in opaque:
                found.note = "its kernels are chosen beneath what can be counted: the profiler sees them, on a GPU"
            else:
                found.counted = count(function, inputs, card)
            if clock is not None:
                trace = folder / f"trace_{plan.layer}{'_add' * subject.adds}_{name.replace(':', '.')}.json"
                found.kernels = measure.profiled(function, inputs, trace)
        except Exception as error:  # somebody else's code, or no memory: a finding, not the end of the run
            found.note = str(error) if isinstance(error, UserError) else brief(error)
            runnable.pop(name, None)
    if clock is not None:
        known = {found.name: found for found in result.found}
        for direction, by_name in measure.times(runnable, inputs, clock, known).items():
            for name, ms in by_name.items():
                known[name].ms[direction] = ms
    return result


def ready(function: Function, inputs: Inputs) -> Function:
    """Compiled and warm."""
    for _ in range(measure.WARM_UP):
        forward_and_backward(function, inputs)()
    return function


def counts(shape: tuple[int, ...], card: Card) -> dict[str, dict[str, Counted]]:
    """Name -> pass, of the teaching example's norms at a shape: in bf16, and without data, whatever the machine."""
    plan = make_plan([f"norm={','.join(claims.NAMES)}", f"shape={'x'.join(map(str, shape))}"])
    (subject,) = subjects(plan.config, plan.layer, plan.shape, plan.dtype)
    inputs = subject.draw(torch.device("meta"))
    return {name: count(subject.build(config), inputs, card) for name, config in plan.configs.items()}


def compiled(counted: Iterable[dict[str, Counted]], card: Card) -> dict[str, Resources]:
    """The resources of every Triton kernel among them, each compiled once."""
    launches = (launch.triton for passes in counted for one in passes.values() for launch in one.launches)
    distinct = {triton.key: triton for triton in launches if triton is not None}
    return {key: resources(t.kernel, t.types, t.constants, t.aligned, card.capability) for key, t in distinct.items()}
