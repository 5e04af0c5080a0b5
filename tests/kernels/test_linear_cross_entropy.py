"""linear_cross_entropy is right at every size, dtype and setting; ignored tokens count nowhere."""

from collections.abc import Callable
from functools import partial
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from kernels import launch, linear_cross_entropy, reference
from tests.kernels.losses import Inputs, check_loss, draw_inputs, gradients
from tests.kernels.norms import BF16, DEVICE, FP16, FP32, draw, leaf

REDUCTIONS = ("mean", "sum", "none")


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """128 tokens a chunk, the fewest there are."""
    monkeypatch.setattr(launch, "LOGITS_BYTES", 1)


@pytest.mark.parametrize("dtype", [FP32, FP16])
@pytest.mark.parametrize("vocabulary", [1, 2, 41, 127, 769, 1024, 4097, 50257])
def test_every_vocabulary(vocabulary: int, dtype: torch.dtype) -> None:
    check_loss(*draw_inputs(5, vocabulary, dtype=dtype), label_smoothing=0.1)


@pytest.mark.parametrize("tokens", [1, 2, 127, 128, 129, 300])
@pytest.mark.usefixtures("small_chunks")
def test_every_number_of_tokens(tokens: int) -> None:
    check_loss(*draw_inputs(tokens))
    check_loss(*draw_inputs(tokens, dtype=FP16), reduction="none")


@pytest.mark.parametrize("shape", [(), (1,), (2, 3), (2, 1, 3)])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_any_rank(shape: tuple[int, ...], reduction: str) -> None:
    check_loss(*draw_inputs(shape), reduction=reduction)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_no_tokens_give_a_loss_of_zero_and_a_zero_weight_gradient(reduction: str) -> None:
    inputs = draw_inputs((3, 0))
    shape = (3, 0) if reduction == "none" else ()
    loss, dhidden, dweight = gradients(
        lambda *t: linear_cross_entropy(*t, reduction=reduction), inputs, torch.ones(shape, device=DEVICE)
    )
    assert torch.equal(loss, torch.zeros(shape, device=DEVICE))
    assert dhidden.shape == (3, 0, 16)
    assert torch.equal(dweight, torch.zeros_like(dweight))


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(("smoothing", "z_loss"), [(0.0, 0.0), (0.1, 0.0), (1.0, 0.0), (0.0, 1e-2), (0.2, 1.0)])
@pytest.mark.parametrize("dtype", [FP32, FP16])
def test_smoothing_and_z_loss(reduction: str, smoothing: float, z_loss: float, dtype: torch.dtype) -> None:
    inputs = draw_inputs(vocabulary=300, dtype=dtype)
    inputs[2][3:9] = 7
    settings = {"label_smoothing": smoothing, "z_loss": z_loss, "ignore_index": 7}
    check_loss(*inputs, reduction=reduction, **settings)


@pytest.mark.parametrize(("hidden", "weight"), list(product([BF16, FP16, FP32], repeat=2)))
def test_every_mix_of_dtypes(hidden: torch.dtype, weight: torch.dtype) -> None:
    check_loss(*draw_inputs(200, 300, 32, dtype=hidden, weight_dtype=weight))


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("dtype", [FP32, FP16])
def test_all_tokens_ignored_give_a_loss_and_gradients_of_exactly_zero(reduction: str, dtype: torch.dtype) -> None:
    hidden, weight, target = draw_inputs(dtype=dtype)
    inputs = hidden, weight, torch.full_like(target, -100)
    upstream = torch.ones(target.shape if reduction == "none" else (), device=DEVICE)
    for found in gradients(lambda *t: linear_cross_entropy(*t, reduction=reduction, z_loss=0.1), inputs, upstream):
        assert torch.equal(found, torch.zeros_like(found))


def test_an_ignored_token_is_worth_exactly_nothing() -> None:
    hidden, weight, target = draw_inputs(20)
    target[5:9] = -100
    kept = target != -100

    def run(*inputs: Tensor) -> tuple[Tensor, ...]:
        return gradients(linear_cross_entropy, inputs, torch.ones((), device=DEVICE))

    loss, dhidden, dweight = run(hidden, weight, target)
    assert not dhidden[~kept].any()
    expected = run(hidden[kept], weight, target[kept])
    torch.testing.assert_close((loss, dhidden[kept], dweight), expected)


def test_gradients_that_fp16_cannot_hold_reach_an_fp32_weight() -> None:
    hidden = leaf(torch.ones(8, 4, dtype=FP16, device=DEVICE))
    weight = torch.zeros(3, 4, device=DEVICE)
    weight[1:] = -5.0  # softmax: 2e-9, where fp16 ends at 6e-8
    target = torch.zeros(8, dtype=torch.int64, device=DEVICE)
    check_loss(hidden, leaf(weight), target, reduction="sum")
    _, _, dweight = gradients(linear_cross_entropy, (hidden, weight, target), torch.ones((), device=DEVICE))
    assert (dweight[1:] > 1e-9).all()


def test_a_large_z_loss_does_not_overflow_fp16() -> None:
    check_loss(*draw_inputs(vocabulary=2, dtype=FP16), z_loss=10.0)


@pytest.mark.parametrize("size", [1e-30, 65536.0])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_an_upstream_gradient_beyond_fp16_does_no_harm(size: float, reduction: str) -> None:
    inputs = draw_inputs(dtype=FP16, weight_dtype=FP32)
    upstream = size * torch.rand(30 if reduction == "none" else (), device=DEVICE)
    dweight = gradients(lambda *t: linear_cross_entropy(*t, reduction=reduction), inputs, upstream)[2]
    unit = gradients(lambda *t: linear_cross_entropy(*t, reduction=reduction), inputs, upstream / size)[2]
    torch.testing.assert_close(dweight / size, unit, rtol=1e-3, atol=1e-5)


@pytest.mark.usefixtures("small_chunks")
def test_uneven_micro_batches_add_up_to_the_whole_batch() -> None:
    hidden, weight, target = draw_inputs(300)
    target[:70] = -100

    def run(part: slice) -> tuple[Tensor, ...]:
        inputs = hidden[part], weight, target[part]
        return gradients(lambda *t: linear_cross_entropy(*t, reduction="sum"), inputs, torch.ones((), device=DEVICE))

    whole, parts = run(slice(None)), [run(slice(a, b)) for a, b in ((0, 10), (10, 200), (200, 300))]
    loss, dhidden, dweight = (sum(p[0] for p in parts), torch.cat([p[1] for p in parts]), sum(p[2] for p in parts))
    torch.testing.assert_close((loss, dhidden, dweight), whole)


def test_a_tied_embedding_gets_both_its_gradients() -> None:
    weight, tokens = leaf(draw(50, 16)), torch.randint(50, (2, 9), device=DEVICE)

    def run(loss: Callable[..., Tensor], weight: Tensor) -> Tensor:
        return torch.autograd.grad(loss(F.embedding(tokens[:, :-1], weight), weight, tokens[:, 1:]), weight)[0]

    exact = run(reference.linear_cross_entropy, leaf(weight.double()))
    torch.testing.assert_close(run(linear_cross_entropy, weight).double(), exact, rtol=1e-5, atol=1e-6)


LAYOUTS: dict[str, Callable[[Inputs], Inputs]] = {
    "hidden column by column": lambda i: (leaf(i[0].mT.contiguous().mT), i[1], i[2]),
    "hidden with gaps": lambda i: (leaf(F.pad(i[0].detach(), (0, 3), value=torch.nan)[..., :-3]), i[1], i[2]),
    "weight column by column": lambda i: (i[0], leaf(i[1].t().contiguous().t()), i[2]),
    "weight with gaps": lambda i: (i[0], leaf(F.pad(i[1].detach(), (0, 3), value=torch.nan)[:, :-3]), i[2]),
    "target with gaps": lambda i: (i[0], i[1], torch.stack([i[2], i[2] * 0 - 1], -1)[..., 0]),
    "one hidden for all": lambda i: (leaf(i[0][:1, :1].expand(i[0].shape)), i[1], i[2]),
}


@pytest.mark.parametrize("change", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_any_layout_is_read_right(change: Callable[[Inputs], Inputs], reduction: str) -> None:
    check_loss(*change(draw_inputs((4, 6))), reduction=reduction)


def test_an_upstream_gradient_of_one_number_for_all_is_right() -> None:
    check_loss(*draw_inputs(), reduction="none", upstream=torch.ones((), device=DEVICE).expand(30))


@pytest.mark.parametrize("wrong", [-1, 41, 47, 64])  # 41 to 63 are the row's padding, 64 is the next row's
def test_a_target_outside_the_vocabulary_is_nan_and_touches_no_other_token(wrong: int) -> None:
    hidden, weight, target = draw_inputs(6, vocabulary=41)
    changed = target.clone()
    changed[2] = wrong
    upstream, per_token = torch.ones(6, device=DEVICE), partial(linear_cross_entropy, reduction="none")
    right, found = (gradients(per_token, (hidden, weight, t), upstream) for t in (target, changed))
    others = torch.arange(6, device=DEVICE) != 2
    for one, other in zip(found[:2], right[:2], strict=True):  # losses, dhidden
        assert torch.equal(one[others], other[others])
        assert one[2].isnan().all()
    assert found[2].isnan().all()


def test_an_upstream_gradient_that_is_no_number_stays_alone() -> None:
    upstream = torch.tensor([1.0, float("inf"), 2.0, float("nan")], device=DEVICE)
    inputs = draw_inputs(4, dtype=FP16)
    dhidden = gradients(partial(linear_cross_entropy, reduction="none"), inputs, upstream)[1]
    assert dhidden.isfinite().all(1).tolist() == [True, False, True, False]


@pytest.mark.filterwarnings("ignore:All-NaN slice:RuntimeWarning")  # the interpreter's
def test_a_broken_token_stays_alone() -> None:
    hidden, weight, target = draw_inputs(9)
    broken = hidden.detach().clone()
    broken[4, 3] = torch.nan

    def run(hidden: Tensor) -> tuple[Tensor, ...]:
        one_each = torch.ones(9, device=DEVICE)
        return gradients(lambda *t: linear_cross_entropy(*t, reduction="none"), (hidden, weight, target), one_each)[:2]

    others = torch.arange(9, device=DEVICE) != 4
    for clean, dirty in zip(run(hidden), run(broken), strict=True):
        assert torch.equal(clean[others], dirty[others])
        assert dirty[4].isnan().all()


def test_autocast_is_ignored_and_an_fp32_weight_gets_an_fp32_gradient() -> None:
    inputs = draw_inputs(dtype=BF16, weight_dtype=FP32)
    for reduction in REDUCTIONS:
        upstream = torch.ones(30 if reduction == "none" else (), device=DEVICE)

        def loss(*tensors: Tensor, reduction: str = reduction) -> Tensor:
            return linear_cross_entropy(*tensors, reduction=reduction)

        outside = gradients(loss, inputs, upstream)
        for dtype in (BF16, FP16):
            with torch.autocast(DEVICE.type, dtype=dtype):
                inside = gradients(loss, inputs, upstream)
            assert all(torch.equal(a, b) for a, b in zip(outside, inside, strict=True))
            assert inside[2].dtype == FP32
        wide = draw_inputs(dtype=FP32)
        with torch.autocast(DEVICE.type, dtype=BF16):
            inside = gradients(loss, wide, upstream)
        assert torch.equal(inside[1], gradients(loss, wide, upstream)[1])


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_the_reference_equals_pytorch_in_float64_and_finite_differences(reduction: str) -> None:
    hidden, weight, target = draw_inputs((2, 3), 7, 4)
    target[0, 1] = -100
    hidden, weight = leaf(hidden.double()), leaf(weight.double())
    settings = {"reduction": reduction, "label_smoothing": 0.1}
    theirs = F.cross_entropy(F.linear(hidden, weight).flatten(0, 1), target.flatten(), **settings)
    torch.testing.assert_close(
        reference.linear_cross_entropy(hidden, weight, target, **settings),
        theirs.view(target.shape) if reduction == "none" else theirs,
    )
    assert torch.autograd.gradcheck(
        lambda h, w: reference.linear_cross_entropy(h, w, target, z_loss=0.3, **settings),
        (hidden, weight),
    )
