"""The benchmark's run: every case checked, then every implementation of it timed in turns."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch

from minillm.bench.accuracy import Finding, judge
from minillm.bench.config import BenchConfig
from minillm.bench.linear_cross_entropy import LinearCrossEntropy
from minillm.bench.op import Case, Function, Implementation, Op
from minillm.bench.passes import device_time, forward_and_backward, memory
from minillm.bench.rms_norm import RMSNorm
from minillm.bench.roofs import Roof, copy_roof, fit, free_bytes
from minillm.bench.rotary import Rotary
from minillm.bench.swiglu import SwiGLU
from minillm.bench.timing import DeviceClock, Summary, host_microseconds, interleave
from minillm.errors import UserError
from minillm.hardware import why_no_gpu

OPS: dict[str, Callable[[BenchConfig], Op]] = {
    "rms_norm": RMSNorm,
    "rotary": Rotary,
    "swiglu": SwiGLU,
    "linear_cross_entropy": LinearCrossEntropy,
}

CHECKED_ELEMENTS = {"cuda": 2**22, "cpu": 2**15}  # float64 costs memory, Triton's interpreter time
ROUNDS = 50
WARM_UP = 3
HOST_ROUNDS, HOST_WARM_UP, HOST_ROWS = 40, 50, 8
MEMORY_SHARE = 0.9  # of what is free


@dataclass(frozen=True)
class Measurement:
    """One pass of one implementation. In bytes: `traffic` must move; `extra`, `kept` are memory beside the results."""

    ms: Summary
    traffic: int
    gb_per_second: float
    of_roof: float
    extra: int
    kept: int


@dataclass
class Row:
    """One implementation of one case."""

    case: Case
    name: str
    status: str  # ok, wrong, missing or refused
    note: str = ""
    findings: list[Finding] = field(default_factory=list)
    passes: dict[str, Measurement] = field(default_factory=dict)


@dataclass
class Results:
    """What a run found. roof and host are None and empty without a GPU."""

    op: Op
    implementations: dict[str, Implementation]
    rows: list[Row] = field(default_factory=list)
    roof: Roof | None = None
    host: dict[str, dict[str, Summary]] = field(default_factory=dict)  # "eager", "torch.compile" -> microseconds a call
    notes: list[str] = field(default_factory=list)

    @property
    def passes(self) -> list[str]:
        """The passes that were timed, in the operator's order."""
        return list(dict.fromkeys(direction for row in self.rows for direction in row.passes))


def make_op(config: BenchConfig) -> Op:
    """Raises UserError for an operator that there is not."""
    if config.op not in OPS:
        raise UserError(f"op={config.op} is unknown: choose {', '.join(OPS)} or step")
    return OPS[config.op](config)


def choose(op: Op, names: tuple[str, ...]) -> dict[str, Implementation]:
    """The named implementations, all if none is named; `triton_simple` also names each tile of its sweep."""
    known = op.implementations()
    if not names:
        return known
    chosen: dict[str, Implementation] = {}
    for name in names:
        found = {k: i for k, i in known.items() if k.partition("[")[0] == name}
        if not found and ":" not in name:
            raise UserError(f"impl={name} is unknown: choose {', '.join(known)}, or package.module:name of your own")
        chosen |= found or {name: op.load(name)}
    return chosen


def run(config: BenchConfig, progress: Callable[[str], None], save: Callable[[Results], object]) -> Results:
    """Check every case, on a GPU time it, and save what there is so far. Raises UserError for what cannot be meant."""
    op = make_op(config)
    results = Results(op, choose(op, config.impl))
    timed = torch.cuda.is_available()
    device = torch.device("cuda" if timed else "cpu")
    cases = op.cases()
    clock = DeviceClock(device) if timed else None
    if clock is None:
        results.notes.append(f"{why_no_gpu()}: results are checked and bytes counted, and no times are given")
        cases = [case for case in cases if not case.real] or cases  # the same widths again say nothing without times
    else:
        results.roof = copy_roof(clock, device)
        results.notes.append(f"copy roof {results.roof.gb_per_second:.0f} GB/s")
    progress(results.notes[-1])
    for case in cases:
        if clock is not None:
            case, note = fit(case, op.peak_bytes_an_element, int(MEMORY_SHARE * free_bytes(device)))
            results.notes += [note] if note else []
        rows, functions = check_case(results, case, device)
        torch._dynamo.reset()  # so that what is timed is compiled afresh, not as one more shape
        if clock is not None and results.roof is not None:
            time_case(op, case, {row.name: row for row in rows}, functions, config.passes, clock, results.roof)
        results.rows += rows
        progress(line(case, rows))
        save(results)
        torch._dynamo.reset()
    if clock is not None:
        results.host = time_host(op, results.rows[0].case, built_for_first_case(results), device)
    return results


def built_for_first_case(results: Results) -> dict[str, Function]:
    """The implementations that ran in the first case, built for it anew."""
    case = results.rows[0].case
    names = [row.name for row in results.rows if row.case == case and row.status in ("ok", "wrong")]
    return {name: results.implementations[name].build(case) for name in names}


def check_case(results: Results, case: Case, device: torch.device) -> tuple[list[Row], dict[str, Function]]:
    """A row for each implementation, and those that ran, right or wrong."""
    rows, functions = [], {}
    small = replace(case, rows=max(4, min(case.rows, CHECKED_ELEMENTS[device.type] // case.width)))
    for name, implementation in results.implementations.items():
        row = Row(case, name, "ok")
        rows.append(row)
        if implementation.missing:
            row.status, row.note = "missing", implementation.missing
            continue
        try:
            function = implementation.build(case)
            row.findings = judge(results.op, function, small, results.op.draw(small, device))
        except Exception as error:  # somebody else's code: whatever it raises is a finding, not the end of the run
            row.status, row.note = "refused", brief(error)
            continue
        functions[name] = function
        wrong = [str(finding) for finding in row.findings if not finding.ok]
        if wrong:
            row.status, row.note = "wrong", "; ".join(wrong)
    return rows, functions


def time_case(
    op: Op,
    case: Case,
    rows: Mapping[str, Row],
    functions: Mapping[str, Function],
    passes: tuple[str, ...],
    clock: DeviceClock,
    roof: Roof,
) -> None:
    """Fill in `rows[name].passes` for each of `functions`; one that fails at this size gets the reason instead."""
    inputs = op.draw(case, clock.device)
    runnable: dict[str, Function] = {}
    extras: dict[str, dict[str, tuple[int, int]]] = {}
    for name, function in functions.items():
        try:
            for _ in range(WARM_UP):
                forward_and_backward(function, inputs)()
            extras[name] = memory(function, inputs)
            runnable[name] = function
        except Exception as error:  # as above; out of memory, most likely
            rows[name].status, rows[name].note = "refused", brief(error)
    traffic = op.traffic(case)
    for direction in (d for d in traffic if d in passes):
        measures = {name: device_time(clock, direction, f, inputs, rows[name]) for name, f in runnable.items()}
        for name, ms in interleave(measures, ROUNDS, seed=0).items():
            gb_per_second = traffic[direction] / ms.median / 1e6
            of_roof = gb_per_second / roof.gb_per_second
            measured = Measurement(ms, traffic[direction], gb_per_second, of_roof, *extras[name][direction])
            rows[name].passes[direction] = measured


@contextlib.contextmanager
def compiling_them_all(variants: int) -> Iterator[None]:
    """Variants share functions, such as a block's forward, and torch.compile keeps 8 forms of a function: whoever came
    after ran eagerly under the name of compile, with a warning. Here each has its 8, and one more is its failure."""
    with torch._dynamo.config.patch(recompile_limit=8 * variants, fail_on_recompile_limit_hit=True):
        yield


def time_host(
    op: Op, case: Case, functions: Mapping[str, Function], device: torch.device
) -> dict[str, dict[str, Summary]]:
    """Host time of forward + backward on a few rows, where the device's own time is nothing: called as it is, and as
    the one operator of a compiled function. What fails at so few rows, or cannot be compiled whole, is left out."""
    inputs = op.draw(replace(case, rows=HOST_ROWS), device)
    end_compiler_workers()

    def measure(function: Function) -> Callable[[], float]:
        once = forward_and_backward(function, inputs)
        for _ in range(HOST_WARM_UP):
            once()
        return lambda: host_microseconds(once)

    def measured(form: Callable[[Function], Function]) -> dict[str, Summary]:
        ready: dict[str, Callable[[], float]] = {}
        for name, function in functions.items():
            with contextlib.suppress(Exception):  # the compiler's, and somebody else's code: of all kinds
                ready[name] = measure(form(function))
        return interleave(ready, HOST_ROUNDS, seed=0)

    with compiling_them_all(len(functions)):
        return {
            "eager": measured(lambda function: function),
            "torch.compile": measured(lambda function: torch.compile(function, fullgraph=True, dynamic=False)),
        }


def end_compiler_workers() -> None:
    """From here on Inductor compiles in this process, without the pool of workers that would run beside what is to be
    measured."""
    from torch._inductor import async_compile, config  # slow to import

    config.compile_threads = 1
    async_compile.shutdown_compile_workers()


def line(case: Case, rows: list[Row]) -> str:
    """Progress: the case, and each implementation's fractions of the roof (ms, of a matmul), or what became of it."""

    def short(row: Row) -> str:
        shares = "/".join(f"{m.ms.median:.2f} ms" if case.inner else f"{m.of_roof:.2f}" for m in row.passes.values())
        return f"{row.name} {shares or row.status}" + (" (wrong)" if shares and row.status == "wrong" else "")

    return f"{case.label}: " + ", ".join(map(short, rows))


def brief(error: Exception) -> str:
    """An exception in one line."""
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else 'no message'}"[:200]
