"""What scripts/explain.py does.

Exit status: 0 done; 2 the command is wrong, nothing was done.
"""

import shlex
from datetime import datetime

from minillm.cli import in_sentences, taken
from minillm.errors import UserError
from minillm.folders import results_folder

FOLDER = "hydra.run.dir"
USAGE = """Why is an implementation of a layer faster? Kernels launched, bytes moved, memory kept, milliseconds saved.

  python scripts/explain.py norm=textbook,eager,triton_simple,triton shape=2x3x512   the teaching example, step by step
  python scripts/explain.py experiment=norm_110m norm=eager,torch,compiled,triton    at a model's shape
  python scripts/explain.py model=1b mlp=eager,triton                                also rope=, loss=

One layer takes a list of implementations, the first is the baseline; all else is as for train.py. Without shape= it is
looked at as a training step of the model has it. Without a GPU it counts, and shows recorded GPU figures beside.

  shape=           sizes of the tensor that the layer works on, the last one its width: x of norm, qkv of rope, gate and
                   up of mlp, the hidden states of loss
  hydra.run.dir=   where the results go; runs/<date>/<time>_explain_<layer> unless given
"""


def main(arguments: list[str]) -> int:
    """Run a command line; returns the exit status."""
    if not arguments or {"-h", "--help"} & set(arguments):
        print(USAGE)
        return 0
    return in_sentences(lambda: run(arguments))


def run(arguments: list[str]) -> int:
    for argument in arguments:
        if argument.startswith("-"):
            raise UserError(f"{argument} is no option here: values are typed as key=value; the list needs no -m")
    # Slow to import: not for help
    from minillm.explain import report, runner
    from minillm.explain.plan import make_plan
    from minillm.explain.plot import save_plot
    from minillm.explain.tracking import track

    now = datetime.now()
    own, rest = taken(arguments, (FOLDER,))
    plan = make_plan(rest)
    command = shlex.join(["python", "scripts/explain.py", *arguments])
    with results_folder(own.get(FOLDER), f"explain_{plan.layer}", now) as folder:
        explanation = runner.run(plan, command, folder, lambda text: print(text, flush=True))
        print(f"\n{report.save(folder, explanation)}")
        for line in (save_plot(folder / "explain.png", explanation), track(explanation, folder)):
            if line:
                print(line)
        print(folder)
    return 0
