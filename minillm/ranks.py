"""Starting a process for each device, and seeing all of them to their end."""

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch.distributed import TCPStore
from torch.multiprocessing.spawn import ProcessContext, ProcessExitedException, start_processes

from minillm import distributed, hardware
from minillm.checkpoint import last_good
from minillm.config import Config
from minillm.errors import OtherRankError, UserError
from minillm.failures import explained
from minillm.output import go_on_unheard
from minillm.signals import Signals, Stopped

GRACE_S = 10.0  # after a rank has failed: for the others to notice by themselves, then to end when told

Run = Callable[..., None]


@dataclass(frozen=True)
class Report:
    """What a rank says at its end: what it came to know, and what ended it before its time."""

    rank: int
    known: dict[str, Any]
    ending: BaseException | None = None


def run_ranks(run: Run, config: Config, folder: Path, known: dict[str, Any], *arguments: Any) -> None:
    """Call `run(config, folder, known, *arguments, signals)` in `trainer.devices` processes; `known` becomes rank 0's.

    A signal to this process is passed on to the ranks, which end their step together.

    Raises:
        UserError: that of a rank, or one that says which rank was lost.
        Stopped: when the ranks were stopped by a signal, to this process or to any of them.
    """
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # where the ranks meet, at a free port
    reports = get_context("spawn").SimpleQueue()
    values = (run, config, folder, known, arguments, store.port, reports)
    context = start_processes(rank_main, values, nprocs=config.trainer.devices, join=False, start_method="spawn")
    assert context is not None
    lost: ProcessExitedException | None = None
    try:
        see_to_the_end(context)
    except ProcessExitedException as error:
        lost = error
    told: list[Report] = []
    while not reports.empty():
        told.append(reports.get())
    for report in told:
        known |= report.known if report.rank == 0 else {}
    if lost is not None and lost.signal_name is not None:
        raise UserError(
            f"rank {lost.error_index} of {config.trainer.devices} was lost ({lost.signal_name}), and the others were "
            f"ended; {last_good(folder)}"
        ) from lost
    endings = [report.ending for report in told if report.ending is not None]
    if endings:
        raise min(endings, key=lambda ending: isinstance(ending, OtherRankError))
    if lost is not None:
        raise lost


def see_to_the_end(context: ProcessContext) -> None:
    """Wait until all ranks have ended; pass a signal on. If one fails, end the others and raise what torch raises."""
    try:
        while not context.join(grace_period=GRACE_S):
            pass
    except Stopped as stop:
        for process in context.processes:
            if process.is_alive():
                os.kill(int(process.pid), stop.number)
        see_to_the_end(context)


def rank_main(
    rank: int,
    run: Run,
    config: Config,
    folder: Path,
    known: dict[str, Any],
    arguments: tuple[Any, ...],
    port: int,
    reports: Any,
) -> None:
    """The life of a rank."""
    go_on_unheard()
    with suppress(PermissionError):  # it leads a group already
        os.setsid()  # Ctrl-C in a terminal reaches the parent alone, which passes it on
    place = (rank, rank, config.trainer.devices, "127.0.0.1", port)
    os.environ |= dict(zip(distributed.PLACE, map(str, place), strict=True))
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"  # the parent serves the store
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, torch.get_num_threads() // config.trainer.devices))
    signals = Signals()
    try:
        with signals:
            in_group(run, config, folder, known, *arguments, signals)
    except Stopped as stop:
        reports.put(Report(rank, known, stop))
        if not signals.deferred:  # the others do not know of it
            raise
    except Exception as error:
        told = explained(error, config, last_good(folder))
        if told is None and not isinstance(error, UserError):
            raise
        reports.put(Report(rank, known, told or error))
        sys.exit(1)
    else:
        reports.put(Report(rank, known))


def in_group(run: Run, config: Config, *arguments: Any) -> None:
    """Run as one of the ranks; only the first one's standard output is shown."""
    if distributed.rank():
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    with distributed.group(hardware.accelerator(config) == "gpu"):
        run(config, *arguments)
