"""One small training job, killed at random moments and resumed until it is done: does it end as if nothing had been?

    python -m tests.reliability.kills FOLDER --sigkill 10 --sigterm 10

Prints, as JSON, what each kill met and what it cost, and fails where a promise is broken. Each attempt is a process of
its own, forked from this one, which has imported everything and started nothing.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from minillm import resume
from minillm.csv_log import whole_rows
from minillm.train import train
from minillm.whole import ASIDE
from tests.training.conftest import make_config

STEPS_A_KILL = 60  # more than are taken between two of them
JOB: dict[str, Any] = {
    "batch.micro": 2,
    "batch.accumulate": 2,
    "data.synthetic_tokens": 1500,  # an epoch is 22 steps
    "trainer.val_every_steps": 7,
    "checkpoint.every_steps": 3,
    "optim.schedule": "constant",
}
SAME = ("step", "train/loss", "train/grad_norm", "train/lr", "val/loss", "tokens")


def start(folder: Path, steps: int, workers: int) -> BaseProcess:
    """Start the job in `folder`, or go on with it where it has a checkpoint."""

    def attempt() -> None:
        going_on = str(folder) if resume.checkpoints(folder) else None
        changes = {"trainer.max_steps": steps, "data.num_workers": workers, "resume": going_on}
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere), contextlib.redirect_stderr(nowhere):
            train(make_config(JOB | changes), folder)

    process = multiprocessing.get_context("fork").Process(target=attempt)
    process.start()
    return process


def logged_step(folder: Path) -> int:
    return max((int(row["step"]) for row in whole_rows(folder / "metrics.csv")), default=0)


def saved_step(folder: Path) -> int:
    return resume.newest(folder).step if resume.checkpoints(folder) else 0


def strike(process: BaseProcess, folder: Path, number: int, moment: str, chance: random.Random) -> dict[str, Any]:
    """Send the signal at the moment, and say what it met and what it cost.

    starting: whatever the process does in its first half second; stepping: some steps later; writing: then, while a
    checkpoint is being written.
    """
    saved, ahead = saved_step(folder), logged_step(folder) - saved_step(folder)
    goal, aside = saved + chance.randint(1, STEPS_A_KILL // 3), folder / "checkpoints" / ASIDE
    if moment == "starting":
        time.sleep(chance.uniform(0, 0.5))
    else:
        wait(process, lambda: logged_step(folder) >= goal)
        wait(process, lambda: moment != "writing" or aside.exists())
    assert process.pid is not None and process.exitcode is None, "the job is done before all kills"
    os.kill(process.pid, number)
    process.join()
    met = {"signal": signal.Signals(number).name, "moment": moment, "half_a_checkpoint": aside.exists()}
    cost = {"exit": process.exitcode, "step": saved_step(folder), "lost": logged_step(folder) - saved_step(folder)}
    # A log that was ahead before is cut back when the steps begin, which an early signal does not let happen.
    promised = max(ahead, 0 if number == signal.SIGTERM else JOB["checkpoint.every_steps"])
    # Before the run has begun SIGTERM ends the process by itself: for a shell that is 143 as well.
    in_good_order = {128 + number} if moment != "starting" else {128 + number, -number}
    assert cost["exit"] in (in_good_order if number == signal.SIGTERM else {-number}), met | cost
    assert cost["step"] >= saved and cost["lost"] <= promised, met | cost
    return met | cost


def wait(process: BaseProcess, happened: Callable[[], bool]) -> None:
    while process.is_alive() and not happened():
        time.sleep(0.0005)


def outcome(folder: Path) -> dict[str, Any]:
    """What must not depend on kills: weights, optimizer state, and the rows of the log."""
    last = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)
    states = last["optimizer_states"][0]["state"]
    tensors = last["state_dict"] | {f"{p}.{k}": torch.as_tensor(v) for p, s in states.items() for k, v in s.items()}
    return {
        "tensors": {name: tensor.numpy().tobytes() for name, tensor in tensors.items()},
        "rows": [[row[key] for key in SAME] for row in whole_rows(folder / "metrics.csv")],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sigkill", type=int, default=10)
    parser.add_argument("--sigterm", type=int, default=10)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)

    chance = random.Random(options.seed)
    signals = [signal.SIGKILL] * options.sigkill + [signal.SIGTERM] * options.sigterm
    chance.shuffle(signals)
    steps = STEPS_A_KILL * (len(signals) + 1)
    whole, killed = options.folder / "whole", options.folder / "killed"
    undisturbed = start(whole, steps, workers=0)  # beside the killed one: their folders are all that is compared
    kills = []
    for turn, number in enumerate(signals):
        moment = ("writing", "stepping", "starting")[turn % 3]
        kills.append(strike(start(killed, steps, options.workers), killed, number, moment, chance))
    start(killed, steps, options.workers).join()
    undisturbed.join()
    assert outcome(killed) == outcome(whole), "the run has not ended as the uninterrupted one"
    print(json.dumps({"steps": steps, "kills": kills, "equal": True}, indent=2))


if __name__ == "__main__":
    main()
