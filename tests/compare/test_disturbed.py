"""A round that something else got into is told from a quiet one."""

import pytest

from minillm.compare.disturbed import reasons
from minillm.compare.records import Losses, Machine, Ready, Round, Turn, Window
from tests.compare.made import ENV


def one(number: int, ms: tuple[float, ...] = (10.0, 10.0), gpu: str | None = "GPU-1", **machine: float) -> Round:
    """A round of one variant: the times of its windows' steps, and what the machine did."""
    trained = Losses(first_step=1, losses=[], samples="")
    windows = [Window(step_ms=[step], wait_ms=[0.0], tokens=64, memory={}, trained=trained) for step in ms]
    ready = Ready(
        env=ENV, corpus={}, layers_ran={}, attention_backend=None, precision="", parameters=1, model_flops_per_token=1,
        peak_flops=None, timings_valid=True, gpu=gpu, free_memory=None, warmup=trained,
    )  # fmt: skip
    turns = [Turn(variant=0, sweep=i, window=w, machine=Machine(**machine)) for i, w in enumerate(windows)]
    return Round(number=number, seed=0, ready={0: ready}, turns=turns, failed={}, seconds=1.0)


QUIET = [one(number, (10.0 + 0.01 * number, 10.0), clock_mhz=1900.0, other_gpu_processes=0) for number in range(3)]


@pytest.mark.parametrize(
    ("odd", "reason"),
    [
        (one(3, clock_mhz=1900.0, other_gpu_processes=1), "1 other process(es) on the GPU"),
        (one(3, clock_mhz=1200.0), "the GPU's clock fell to 1200 MHz (usually 1900)"),
        (one(3, (10.0, 10.5)), "windows 5% apart"),
        (one(3, (12.0, 12.0)), "steps 1.20 times as long as in the fastest round"),
        (one(3, gpu=None, other_cpu_share=0.5), "other processes took 50% of the CPUs"),
    ],
)
def test_a_disturbed_round_says_why(odd: Round, reason: str) -> None:
    assert reasons([*QUIET, odd]) == [[], [], [], [reason]]


def test_one_low_reading_of_a_clock_is_no_reason() -> None:
    odd = one(3)
    readings = zip(odd.turns, (1900.0, 1500.0), strict=True)
    turns = [turn.model_copy(update={"machine": Machine(clock_mhz=clock)}) for turn, clock in readings]
    assert reasons([*QUIET, odd.model_copy(update={"turns": turns})])[3] == []


def test_half_of_the_rounds_can_be_told() -> None:
    found = reasons([*QUIET, *(one(number, (20.0, 20.0)) for number in (3, 4, 5))])
    assert [bool(what) for what in found] == [False] * 3 + [True] * 3


def test_busy_cpus_beside_a_gpu_are_no_reason() -> None:
    assert reasons([*QUIET, one(3, other_cpu_share=0.5)])[3] == []


def test_nothing_is_made_of_what_is_not_known() -> None:
    assert reasons([one(number) for number in range(4)]) == [[]] * 4
    assert reasons([]) == []
