"""The runner's side of a worker: start it, tell it, hear it, end it."""

import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter

from minillm.compare.records import Failed, Ready, Window
from minillm.compare.worker import Job

REPORT: TypeAdapter[Ready | Window | Failed] = TypeAdapter(
    Annotated[Ready | Window | Failed, Field(discriminator="event")]
)
PATIENCE = 20  # seconds that a worker has to end by itself


class WorkerError(Exception):
    """A worker ended before it was told to."""

    def __init__(self, failed: Failed) -> None:
        super().__init__(failed.error)
        self.failed = failed


class Worker:
    """One process of one variant. In a session of its own, so that Ctrl-C is the runner's; its stdin ends when the
    runner does."""

    def __init__(self, job: Job, log: Path) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "minillm.compare.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                text=True,
                start_new_session=True,
            )
        self.tell(job.model_dump_json())

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended: `hear` says so
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()

    def hear(self) -> Ready | Window:
        """What it reports next. Raises WorkerError where it has ended instead."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        report = REPORT.validate_json(line) if line else Failed(error=self.last_words())
        if isinstance(report, Failed):
            raise WorkerError(report)
        return report

    def last_words(self) -> str:
        """For a worker that could not say why it ended: how, and the log's last line."""
        status = self.process.wait()
        lines = self.log.read_text(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "no output")
        return f"ended with status {status}: {last}"

    def ready(self) -> Ready:
        report = self.hear()
        assert isinstance(report, Ready)
        return report

    def window(self, steps: int) -> Window:
        self.tell(str(steps))
        report = self.hear()
        assert isinstance(report, Window)
        return report

    def stop(self) -> None:
        """End it, by itself where it can, and wait until the device's memory is free again."""
        self.tell("0")
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            with suppress(BrokenPipeError):
                stream.close()
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
