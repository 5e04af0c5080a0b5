"""What scripts/bench.py does.

Exit status: 0 done; 1 a conformance check failed, or no variant of a step could be timed; 2 the command is wrong,
nothing was done.
"""

import shlex
from datetime import datetime

import torch

from minillm.bench import report
from minillm.bench.config import BenchConfig, parse, read, usage
from minillm.bench.conformance import conformance
from minillm.bench.plot import save_plot
from minillm.bench.runner import Results, choose, make_op, run
from minillm.cli import in_sentences
from minillm.folders import results_folder
from minillm.hardware import environment, version

PEERS = ("liger-kernel", "quack-kernels")


def main(arguments: list[str]) -> int:
    """Run a command line; returns the exit status."""
    if not arguments or set(arguments) & {"--help", "-h"}:
        print(help_text())
        return 0
    return in_sentences(lambda: act(arguments))


def act(arguments: list[str]) -> int:
    command = shlex.join(["python", "scripts/bench.py", *arguments])
    if "op=step" in arguments:
        return measure_step(arguments, command)
    config = parse(arguments)
    return check(config) if config.check else measure(config, command)


def help_text() -> str:
    from minillm.bench.step.config import StepConfig

    operators = f"usage: python scripts/bench.py op=rms_norm [key=value ...]\n\n{usage(BenchConfig)}"
    return f"{operators}\n\n       python scripts/bench.py op=step model=110m [key=value ...]\n\n{usage(StepConfig)}"


def measure(config: BenchConfig, command: str) -> int:
    env = environment("gpu" if torch.cuda.is_available() else "cpu") | {peer: version(peer) for peer in PEERS}
    with results_folder(config.out, f"bench_{config.op}", datetime.now()) as folder:

        def save(results: Results) -> str:
            return report.save(folder, results, config, command, env)

        results = run(config, progress=show, save=save)
        text = save(results)
        trouble = save_plot(folder / "bench.png", results)
        show("\n" + text + (f"\n{trouble}\n" if trouble else ""))
        show(str(folder))
        return 0


def measure_step(arguments: list[str], command: str) -> int:
    from minillm.bench.step import report, runner  # slow to import: all of training
    from minillm.bench.step.config import StepConfig

    results = runner.plan(read(arguments, StepConfig))
    with results_folder(results.options.out, "bench_step", datetime.now()) as folder:
        runner.run(results, save=lambda: report.save(folder, results, command), progress=show)
        show("\n" + report.markdown(results, command))
        show(str(folder))
    return 0 if any(variant.ms for variant in results.variants) else 1


def check(config: BenchConfig) -> int:
    op = make_op(config)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    failed = 0
    for name, implementation in choose(op, config.impl).items():
        checks = conformance(op, name, implementation, device)
        lines = [[c.implementation, c.promise, "pass" if c.ok else "FAIL", c.problem] for c in checks]
        show(report.table(["implementation", "check", "", "what was found"], lines) + "\n")
        failed += sum(not c.ok for c in checks)
    show(f"{failed} check(s) failed" if failed else "all checks passed")
    return 1 if failed else 0


def show(text: str) -> None:
    """Print at once: a run takes minutes, and its progress is read while it is made."""
    print(text, flush=True)
