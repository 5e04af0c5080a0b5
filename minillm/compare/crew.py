"""The workers of one round."""

import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from minillm.compare import same
from minillm.compare.plan import Plan
from minillm.compare.process import Worker, WorkerError
from minillm.compare.records import Failed, Ready, Turn
from minillm.compare.schedule import SETTLE_STEPS
from minillm.compare.watch import Watch
from minillm.compare.worker import Job
from minillm.errors import UserError

CROWDED = 0.05  # part of the device's memory that must stay free, or the allocators get into each other's way


class Crew:
    """Starts workers, gives them turns, and ends them, all of them at the end of the `with` block.

    One that fails is noted and never asked again; the others go on.
    """

    def __init__(self, plan: Plan, seed: int, folder: Path) -> None:
        self.plan, self.seed, self.folder = plan, seed, folder
        self.live: dict[int, Worker] = {}
        self.ready: dict[int, Ready] = {}
        self.failed: dict[int, Failed] = {}
        self.turns: list[Turn] = []
        self.watch = Watch()

    def __enter__(self) -> "Crew":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if kind is None:
            self.stop()
        for worker in self.live.values():
            worker.kill()

    def start(self, variants: Sequence[int]) -> float:
        """Start them all at once and wait until each has warmed up; the seconds that it took.

        Raises UserError for a variant that this machine cannot run, and where they turn out to run on other things
        than each other: device, versions, data.
        """
        started = time.monotonic()
        for variant in variants:
            config = self.plan.variants[variant].config
            job = Job(
                config=config.model_copy(update={"seed": config.seed + self.seed}),
                folder=self.folder / f"{variant}",
            )
            self.live[variant] = Worker(job, job.folder / "log.txt")
        for variant in variants:
            try:
                self.ready[variant] = self.live[variant].ready()
            except WorkerError as error:
                self.lose(variant, error)
        same.check_ready(self.ready, self.plan.varied, self.plan.names)
        return time.monotonic() - started

    def turn(self, variant: int, steps: int, sweep: int | None) -> None:
        """Let one worker train for some steps, the others waiting."""
        if variant not in self.live:
            return
        pids = [worker.process.pid for worker in self.live.values()]
        self.watch.begin(pids)
        try:
            window = self.live[variant].window(steps)
        except WorkerError as error:
            self.lose(variant, error)
            return
        machine = self.watch.end(pids, self.ready[variant].gpu)
        self.turns.append(Turn(variant=variant, sweep=sweep, window=window, machine=machine))

    def settle(self, variant: int) -> None:
        self.turn(variant, SETTLE_STEPS, None)

    def stop(self) -> None:
        """End all that live."""
        while self.live:
            self.live.popitem()[1].stop()

    def lose(self, variant: int, error: WorkerError) -> None:
        if error.failed.refused:
            raise UserError(f"{self.plan.names[variant]}: {error.failed.error}")
        self.failed[variant] = error.failed
        self.live.pop(variant).stop()

    def crowded(self) -> bool:
        """Whether those who live, and those who did not make it, are too many for the device's memory."""
        free = [ready.free_memory for ready in self.ready.values() if ready.free_memory is not None]
        return any(failed.out_of_memory for failed in self.failed.values()) or min(free, default=1.0) < CROWDED
