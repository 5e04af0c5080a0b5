"""bf16 weights that lose no updates."""

import pytest
import torch

import kernels
from kernels import adamw_reference
from kernels.adamw_reference import noise, round_stochastically
from kernels.operator import INTERPRETED
from minillm.optim_bf16 import StochasticAdamW


def train(optimizer_class: type, dtype: torch.dtype, steps: int, device: str = "cpu", **more: object) -> torch.Tensor:
    """4096 weights of 1.0 after `steps` updates of 1e-4 each, 1/80 of what bf16 can show below 1."""
    p = torch.nn.Parameter(torch.ones(4096, dtype=dtype, device=device))
    optimizer = optimizer_class([p], lr=1e-4, betas=(0.9, 0.95), weight_decay=0.0, **more)
    for _ in range(steps):
        p.grad = torch.ones_like(p)
        optimizer.step()
    return p.detach().float()


def check_mean(device: str) -> None:
    expected = train(torch.optim.AdamW, torch.float32, 40, device).mean().item()
    assert train(torch.optim.AdamW, torch.bfloat16, 40, device).mean().item() == 1.0  # rounded to nearest: all lost
    moved = train(StochasticAdamW, torch.bfloat16, 40, device).mean().item()
    assert 1 - moved == pytest.approx(1 - expected, rel=0.05)


def test_small_updates_arrive_in_the_mean() -> None:
    check_mean("cpu")


@pytest.mark.gpu
def test_small_updates_arrive_in_the_mean_on_the_gpu() -> None:
    check_mean("cuda")


def test_fp32_parameters_are_stepped_as_by_adamw() -> None:
    torch.manual_seed(0)
    start, grads = torch.randn(7, 5), torch.randn(6, 7, 5)
    results = []
    for optimizer_class in (StochasticAdamW, torch.optim.AdamW):
        p = torch.nn.Parameter(start.clone())
        optimizer = optimizer_class([p], lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1)
        for grad in grads:
            p.grad = grad.clone()
            optimizer.step()
        results.append(p.detach())
    torch.testing.assert_close(*results)


def test_rounding_is_to_a_neighbour_and_exact_in_the_mean() -> None:
    low, high = 1.0, 1.0 + 2**-7
    x = torch.full((1 << 16,), low + 0.3 * (high - low))
    rounded = round_stochastically(x, torch.tensor(1)).float()
    assert set(rounded.tolist()) == {low, high}
    assert rounded.mean().item() == pytest.approx(x[0].item(), abs=2e-4)
    assert round_stochastically(-x, torch.tensor(1)).float().equal(-rounded)


def test_rounding_keeps_what_bf16_can_hold_and_what_is_no_number() -> None:
    x = torch.tensor([0.0, -0.0, 1.5, -384.0, float("inf"), -float("inf"), float("nan")])
    assert torch.equal(round_stochastically(x, torch.tensor(5)).float().nan_to_num(9), x.nan_to_num(9))


def test_noise_is_uniform_and_other_for_another_key() -> None:
    a, b = noise(1 << 16, torch.tensor(3)).float(), noise(1 << 16, torch.tensor(4)).float()
    for values in (a, b):
        assert values.min() >= 0
        assert values.max() < 1 << 16
        assert values.mean().item() == pytest.approx(1 << 15, rel=0.01)
    assert abs(torch.corrcoef(torch.stack((a, b)))[0, 1].item()) < 0.02
    assert abs(torch.corrcoef(torch.stack((a[1:], a[:-1])))[0, 1].item()) < 0.02


def test_the_rounding_depends_on_seed_and_step_alone() -> None:
    first, again, other = (train(StochasticAdamW, torch.bfloat16, 5, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_second_moment_that_could_not_decay_is_refused() -> None:
    with pytest.raises(ValueError, match=r"0\.99"):
        StochasticAdamW([torch.nn.Parameter(torch.ones(1))], lr=1e-3, betas=(0.9, 0.999))
    with pytest.raises(ValueError, match=r"0\.99"):
        StochasticAdamW([{"params": [torch.nn.Parameter(torch.ones(1))], "betas": (0.9, 0.999)}], lr=1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_kernel_is_its_specification(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    start = [torch.randn(100_003, device="cuda", dtype=dtype) for _ in range(4)]
    start[3].abs_()
    # No round betas: with 0.9 the mean of two bf16 numbers is often a tie, which rounding in fp32 breaks either way.
    scalars = torch.tensor([1e-3, 0.8973, 0.9531, 1e-8, 0.1, 0.19, 0.0975], device="cuda")
    zero, key = torch.zeros((), device="cuda"), torch.tensor(0xFEDCBA98, device="cuda")
    results = []
    for step in (adamw_reference.adamw_stochastic, kernels.adamw_stochastic):
        tensors = [x.clone() for x in start]
        step(*tensors, scalars, zero, key)
        results.append(tensors)
        unchanged = [x.clone() for x in tensors]
        step(*tensors, scalars, zero + 1, key)
        assert all(torch.equal(x, y) for x, y in zip(tensors, unchanged, strict=True))
    for expected, got in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, rtol=2**-7 if dtype == torch.bfloat16 else 1e-5, atol=1e-6)
        assert (got != expected).float().mean() < (0.001 if dtype == torch.bfloat16 else 1)  # one ulp, seldom


def numbers(device: str) -> tuple[torch.Tensor, ...]:
    """scalars, found_inf, key."""
    key = torch.zeros((), device=device, dtype=torch.int64)
    return torch.full((7,), 0.5, device=device), torch.zeros((), device=device), key


def test_the_kernel_refuses_what_it_would_walk_wrongly() -> None:
    device = "cpu" if INTERPRETED else "cuda"
    rest = numbers(device)
    narrow, wide = (torch.zeros(8, dtype=dtype, device=device) for dtype in (torch.bfloat16, torch.float32))
    with pytest.raises(TypeError, match=r"p torch\.float16"):
        kernels.adamw_stochastic(*[narrow.half()] * 4, *rest)
    with pytest.raises(TypeError, match=r"g torch\.float32"):
        kernels.adamw_stochastic(narrow, wide, narrow, narrow, *rest)
    scalars, found_inf, key = rest
    with pytest.raises(ValueError, match="scalars must be"):
        kernels.adamw_stochastic(*[narrow] * 4, scalars[:3], found_inf, key)
    with pytest.raises(TypeError, match=r"scalars torch\.bfloat16"):
        kernels.adamw_stochastic(*[narrow] * 4, scalars.bfloat16(), found_inf, key)
    for wrong in (narrow[:4], narrow.view(2, 4), torch.zeros(16, dtype=torch.bfloat16, device=device)[::2]):
        with pytest.raises(ValueError, match="flat, contiguous and of one size"):
            kernels.adamw_stochastic(narrow, wrong, narrow, narrow, *rest)


def test_backward_through_a_graph_from_before_a_step_is_refused() -> None:
    device = "cpu" if INTERPRETED else "cuda"
    p = torch.ones(8, device=device, requires_grad=True)
    loss = p.square().sum()
    kernels.adamw_stochastic(p.detach(), *torch.ones(3, 8, device=device), *numbers(device))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
