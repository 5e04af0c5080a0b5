"""What scripts/compare.py does.

Exit status: 0 done; 1 it cannot be finished (a variant cannot run here or is not comparable, or all failed); 2 the
command or its configuration is wrong, nothing was done; 143 and 130 stopped by SIGTERM and SIGINT, what was measured is
kept.
"""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minillm.cli import fail, in_sentences
from minillm.compare.plan import Options, make_plan
from minillm.compare.statistics import MIN_ROUNDS
from minillm.errors import UserError
from minillm.folders import alone_in, check_writable, results_folder

if TYPE_CHECKING:
    from minillm.compare.records import Measurement

FOLDER = "hydra.run.dir="
USAGE = """Trains variants in turns: which is faster, with what certainty, and is training still the same?

  python scripts/compare.py norm=eager,triton
  python scripts/compare.py experiment=norm_110m norm=eager,torch,triton loss=eager,triton compare.minutes=20
  python scripts/compare.py layers=each
  python scripts/compare.py norm=eager,my_package.my_module:MyNorm
  python scripts/compare.py runs=DIR,DIR          finished runs in a table: no interval, no verdict

Any value of train.py can be typed; one with commas is compared, the first value is the baseline.
"""


def main(arguments: list[str]) -> int:
    """Run a command line; returns the exit status."""
    if not arguments or {"-h", "--help"} & set(arguments):
        print(USAGE)
        for name, field in Options.model_fields.items():
            print(f"  compare.{name + '=':<9}{field.description}")
        print("  compare.resume=  go on with a comparison, by its folder; beside it compare.rounds=, as many as in all")
        print("  hydra.run.dir=   where the results go; runs/<date>/<time>_compare_<keys> unless given")
        return 0
    return in_sentences(lambda: run(arguments))


def run(arguments: list[str]) -> int:
    """Find out which of the three it is: finished runs, an interrupted comparison, a new one."""
    for argument in arguments:
        if argument.startswith("-"):
            raise UserError(f"{argument} is no option here: values are typed as key=value; lists need no -m")
    typed = dict(argument.split("=", 1) for argument in arguments if "=" in argument)
    folder_typed = sum(argument.startswith(FOLDER) for argument in arguments)
    beside_resume = len(arguments) - 1 - ("compare.rounds" in typed)
    if ("runs" in typed and len(arguments) > 1 + folder_typed) or ("compare.resume" in typed and beside_resume):
        alone = "runs" if "runs" in typed else "compare.resume"
        raise UserError(f"{alone}= brings its own configuration: leave the rest out")
    # Slow to import: not for mistakes
    from minillm.compare.files import read
    from minillm.compare.records import Measurement

    if "compare.resume" in typed:
        folder = Path(typed["compare.resume"]).expanduser().resolve()
        read(folder)  # what is no comparison is left alone: the lock is a file
        check_writable(folder, "get the permission, or go on in a copy of it")
        with alone_in(folder):
            measurement = read(folder)  # another process may have gone on until now
            if "compare.rounds" in typed:
                measurement = lengthened(measurement, typed["compare.rounds"])
            return measured(measurement, folder)
    now = datetime.now()
    command, started = shlex.join(["python", "scripts/compare.py", *arguments]), now.isoformat(timespec="seconds")
    if "runs" in typed:
        folders = [Path(folder).expanduser() for folder in typed["runs"].split(",")]
        with new_folder(typed.get("hydra.run.dir"), "runs", now) as folder:
            return tabulated(folders, command, started, folder)
    plan = make_plan([argument for argument in arguments if not argument.startswith(FOLDER)])
    with new_folder(typed.get("hydra.run.dir"), "_".join(plan.varied), now) as folder:
        folder.mkdir(parents=True, exist_ok=True)
        with alone_in(folder):
            return measured(Measurement(plan=plan, command=command, started=started), folder)


def lengthened(measurement: "Measurement", rounds: str) -> "Measurement":
    """The comparison with so many rounds in all, planned or not. Raises UserError for fewer than there are."""
    done = len(measurement.rounds)
    least = max(MIN_ROUNDS, done)
    if not rounds.isdecimal() or int(rounds) < least:
        raise UserError(f"compare.rounds={rounds}, but {done} rounds are there already: type {least} or more")
    options = measurement.plan.options.model_copy(update={"rounds": int(rounds)})
    update: dict[str, Any] = {"plan": measurement.plan.model_copy(update={"options": options})}
    if measurement.schedule is not None:
        update["schedule"] = measurement.schedule.model_copy(update={"rounds": int(rounds)})
    return measurement.model_copy(update=update)


@contextmanager
def new_folder(typed: str | None, label: str, now: datetime) -> Iterator[Path]:
    """Where the results go. Raises UserError where some are already."""
    from minillm.compare.files import NAME

    with results_folder(typed, f"compare_{label}", now) as folder:
        if (folder / NAME).exists():
            raise UserError(f"{folder} holds a comparison: type compare.resume={folder}, or choose another folder")
        yield folder


def tabulated(runs: list[Path], command: str, started: str, folder: Path) -> int:
    """Finished runs in the same files."""
    from minillm.compare import files, finished
    from minillm.compare.report.tables import markdown

    result = files.plain(finished.tabulated(runs, command, started))
    folder.mkdir(parents=True, exist_ok=True)
    files.save(folder, result)
    print(f"{markdown(result)}\n{folder}")
    return 0


def measured(measurement: "Measurement", folder: Path) -> int:
    """Measure what is left, write and show what comes out, name the folder, which no other process may be using."""
    from minillm.compare import files, runner
    from minillm.compare.report.tables import markdown, verdicts
    from minillm.compare.report.tracking import track
    from minillm.signals import Signals, Stopped

    state = measurement

    def save(so_far: "Measurement") -> None:
        nonlocal state
        state = so_far
        files.write(folder, state, "running")

    status, code = "finished", 0
    try:
        with Signals():
            state = runner.measure(measurement, folder, save, lambda text: print(text, flush=True))
    except Stopped as stop:
        status, code = "interrupted", int(str(stop.code))
    except UserError as error:  # known only now: a variant cannot run here, or is not comparable
        files.write(folder, state, "refused")
        fail(error, status=1)
    result = files.write(folder, state, status)
    print(f"\n{markdown(result)}")
    go_on = f"python scripts/compare.py compare.resume={folder}"
    if status == "interrupted":
        print(f"interrupted; to go on: {go_on}")
    else:
        if any(line.kind == "undecided" for line in verdicts(result)):
            print(f"for more rounds: {go_on} compare.rounds=N, as many as in all")
        code = 0 if runner.alive(state) else 1
        if line := track(result, folder):
            print(line)
    print(folder)
    return code
