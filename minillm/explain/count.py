"""Every kernel that a layer launches and the tensors that it reads and writes, seen from PyTorch's dispatcher and where
Triton's kernels are launched.

Where there is no GPU, nothing is computed: the tensors are PyTorch's `meta` tensors, which have shapes and no data, and
a launch is noted and not made. Model-sized layers are counted in a second, and with the launch shapes of a real card.

An operation of PyTorch's counts as one kernel unless it only makes a view or allocates. That holds for the elementwise
operations and reductions that these layers are made of; a matrix product may be several on a GPU. Bytes moved are each
tensor read and each tensor written, once a kernel and by its own dtype; an element that is broadcast counts once. Which
of its tensors a Triton kernel reads and which it writes, its code alone knows: one that it changes in place (the logits
of linear_cross_entropy) counts once, too.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from kernels import operator
from minillm.bench.op import Function, Inputs
from minillm.bench.passes import calls
from minillm.explain.card import Card

OVERWRITING = ("aten::copy_", "aten::fill_", "aten::zero_")  # they do not read what they write over
TRITON_TYPES = {
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.float32: "*fp32",
    torch.int64: "*i64",
    torch.int32: "*i32",
}


@dataclass(frozen=True)
class Triton:
    """A launch of a Triton kernel: enough to compile it again."""

    kernel: Any
    grid: tuple[int, ...]
    types: dict[str, str]  # of the arguments that are no constants
    aligned: tuple[str, ...]
    constants: dict[str, Any]

    @property
    def key(self) -> str:
        """Equal for launches of the same compiled code."""
        return repr((self.kernel.fn.__name__, self.types, self.aligned, self.constants))

    @property
    def programs(self) -> int:
        return torch.Size(self.grid).numel()

    @property
    def warps(self) -> int:
        return int(self.constants.get("num_warps", 4))


@dataclass(frozen=True)
class Launch:
    """One kernel, and the bytes that it moves."""

    name: str
    moved: int
    outputs: tuple[str, ...] = ()  # dtype and shape of each tensor that an operation of PyTorch's writes
    triton: Triton | None = None


@dataclass
class Counted:
    """One pass. In bytes: `intermediates` that were made on the way, `kept` from forward for backward, both without the
    layer's inputs and outputs."""

    launches: list[Launch] = field(default_factory=list)
    intermediates: list[int] = field(default_factory=list)
    kept: int = 0

    @property
    def moved(self) -> int:
        return sum(launch.moved for launch in self.launches)


class Counter(TorchDispatchMode):
    """Inside, each operation that is a kernel becomes a Launch."""

    def __init__(self) -> None:
        super().__init__()
        self.launches: list[Launch] = []
        self.made: dict[StorageWeakRef, int] = {}  # memory that was allocated inside, in bytes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {place(t) for t in tensors((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        returned = [t for t in tensors(result) if place(t) not in given]
        self.made |= {place(t): t.untyped_storage().nbytes() for t in returned}
        name = func._schema.name
        changed = written_over(func._schema, args, kwargs or {})
        if "empty" not in name and (returned or changed):
            written = [*changed, *returned]
            moved = extent(read_by(func._schema, args, kwargs or {})) + extent(written)
            self.launches.append(Launch(name.removesuffix("_"), moved, tuple(map(shown, written))))
        return result

    def launched(self, launch: operator.Launch, given: tuple[Tensor, ...]) -> None:
        """A Triton kernel's launch."""
        if 0 not in launch.grid:
            kernel = launch.kernel
            arguments = dict(zip(kernel.arg_names, (*given, *launch.numbers), strict=False))
            triton = described(kernel, launch.grid, arguments, launch.constants)
            self.launches.append(Launch(kernel.fn.__name__, extent(list(given)), triton=triton))


def tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def shown(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def place(tensor: Tensor) -> StorageWeakRef:
    """The memory that a tensor lives in, told apart from all others even after it is freed."""
    return StorageWeakRef(tensor.untyped_storage())


def extent(given: list[Tensor]) -> int:
    """Bytes of the distinct elements of tensors: a broadcast one counts once, and so does a tensor given twice."""
    distinct = {(place(t), t.storage_offset(), tuple(t.shape), t.stride()): t for t in given}.values()
    return sum(
        torch.Size(n for n, stride in zip(t.shape, t.stride(), strict=True) if stride).numel() * t.itemsize
        for t in distinct
        if t.numel()
    )


def written_over(schema: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """The arguments that an operation changes."""
    values = bound(schema, args, kwargs)
    changed = [values.get(a.name) for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    return tensors(changed)


def read_by(schema: Any, args: Any, kwargs: Any) -> list[Tensor]:
    """The arguments that an operation reads."""
    blind = schema.name in OVERWRITING
    skipped = {a.name for a in schema.arguments if a.is_out or (blind and a.name == "self")}
    return tensors([value for key, value in bound(schema, args, kwargs).items() if key not in skipped])


def bound(schema: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """The arguments by name."""
    return dict(zip((a.name for a in schema.arguments), args, strict=False)) | kwargs


def described(kernel: Any, grid: tuple[int, ...], given: dict[str, Any], constants: dict[str, Any]) -> Triton:
    """Its launch as Triton would specialise it: by type, and by what is a multiple of 16."""
    types = {name: TRITON_TYPES[v.dtype] if isinstance(v, Tensor) else number_type(v) for name, v in given.items()}
    general = {p.name for p in getattr(kernel, "params", ()) if p.do_not_specialize}
    aligned = [name for name, v in given.items() if isinstance(v, Tensor) or (name not in general and not v % 16)]
    ones = {name: 1 for name, v in given.items() if type(v) is int and v == 1 and name not in general}
    return Triton(kernel, grid, types, tuple(aligned), constants | ones)


def number_type(value: float) -> str:
    if isinstance(value, float):
        return "fp32"
    return "i32" if -(2**31) <= value < 2**31 else "i64"


@contextmanager
def launches_noted(counter: Counter, card: Card, run: bool) -> Iterator[None]:
    """Inside, `kernels` tells the counter of its launches. `run`: they are made too; else they need no data, no device,
    and have the shapes that they would have on `card`."""
    make = operator.launch

    def launch(what: operator.Launch, *given: Tensor) -> None:
        counter.launched(what, given)
        if run:
            make(what, *given)

    stand_ins: list[tuple[Any, str, Any]] = [(operator, "launch", launch)]
    if not run:
        stand_ins += [
            (operator, "check_tensors", lambda name, **tensors: None),  # it would want them on a device
            (operator, "multiprocessors", lambda device: card.sms),
            (operator, "shared_memory", lambda device: card.shared_program),
            (torch, "autocast", lambda device_type, enabled: nullcontext()),  # which meta tensors do not have
            (torch, "is_autocast_enabled", lambda device_type: False),
        ]
    before = [(module, name, getattr(module, name)) for module, name, _ in stand_ins]
    try:
        for module, name, stand_in in stand_ins:
            setattr(module, name, stand_in)
        yield
    finally:
        for module, name, own in before:
            setattr(module, name, own)


def count(function: Function, inputs: Inputs, card: Card) -> dict[str, Counted]:
    """ "forward" and "backward" of a function of tensors. On `meta` tensors for `card`, on others as they run."""
    run = not inputs.arguments[0].is_meta
    forward, backward = calls(function, inputs)["backward"]
    kept: dict[StorageWeakRef, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[place(tensor)] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        outputs, going = watched(forward, card, run)
    gradients, coming = watched(lambda: backward(outputs), card, run)
    own = {place(t) for t in [*inputs.arguments, *outputs]}
    results = own | {place(t) for t in gradients if t is not None}
    return {
        "forward": Counted(going.launches, left(going.made, own), sum(left(kept, own))),
        "backward": Counted(coming.launches, left(coming.made, results)),
    }


def watched(call: Any, card: Card, run: bool) -> tuple[Any, Counter]:
    """What a call returns, and its launches."""
    counter = Counter()
    with launches_noted(counter, card, run), counter:
        return call(), counter


def left(sizes: dict[StorageWeakRef, int], without: set[StorageWeakRef]) -> list[int]:
    return [size for storage, size in sizes.items() if storage not in without and size]
