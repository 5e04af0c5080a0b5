"""Every implementation of rope, mlp and loss is one function, in every precision, and leaves its inputs alone."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import kernels
from minillm import hardware, requirements
from minillm.apply import to_bf16
from minillm.config import LAYERS
from minillm.errors import UserError
from minillm.layers import build_layers, loss, mlp, rope, triton_layers
from minillm.model import rope_tables
from tests.training.conftest import make_config, make_module

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HEADS = {"num_heads": 4, "num_kv_heads": 2}
KERNELS = {"norm": "add_rms_norm", "rope": "rotary", "mlp": "swiglu_linear", "loss": "linear_cross_entropy"}
TRITON = dict.fromkeys((f"{layer}.name" for layer in LAYERS), "triton")
Call = Callable[..., Tensor | tuple[Tensor, ...]]


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, device=DEVICE, generator=torch.Generator(DEVICE).manual_seed(seed))


def implementations(*names: str) -> list[object]:
    """Parameters (layer, name): the implementations of these names, of every layer that has them."""
    layers = {"rope": rope, "mlp": mlp, "loss": loss}
    return [
        pytest.param(layer, name, id=f"{layer}={name}")
        for layer, module in layers.items()
        for name in module.IMPLEMENTATIONS
        if name in names
    ]


def case(layer: str, name: str) -> tuple[Call, list[Tensor], list[Tensor]]:
    """A layer's function, its differentiable inputs and the others."""
    if layer == "rope":
        tables = rope_tables(5, 6, 10000.0, torch.device(DEVICE))
        return lambda *x: rope.IMPLEMENTATIONS[name](*x, **HEADS), [draw(2, 5, 8 * 6)], list(tables)
    if layer == "mlp":
        return mlp.IMPLEMENTATIONS[name], [draw(2, 5, 2 * 24), draw(10, 24, seed=1)], []
    targets = torch.arange(10, device=DEVICE).reshape(2, 5) * 3
    return loss.IMPLEMENTATIONS[name], [draw(2, 5, 12), draw(37, 12, seed=1)], [targets]


def results(call: Call, inputs: list[Tensor], others: list[Tensor]) -> list[Tensor]:
    """Outputs and the inputs' gradients."""
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    outputs = call(*inputs, *others)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    sum((i + 1) * y.double().sin().sum() for i, y in enumerate(outputs)).backward()
    return [*(y.detach() for y in outputs), *(x.grad for x in inputs)]


@pytest.mark.parametrize(("layer", "name"), implementations("torch", "triton"))
def test_every_implementation_is_the_eager_function(layer: str, name: str) -> None:
    call, inputs, others = case(layer, name)
    reference = results(case(layer, "eager")[0], inputs, others)
    for got, want in zip(results(call, inputs, others), reference, strict=True):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        torch.testing.assert_close(got, want, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(("layer", "name"), implementations("eager", "torch", "triton"))
def test_no_implementation_changes_its_inputs(layer: str, name: str) -> None:
    call, inputs, others = case(layer, name)
    inputs = [x.requires_grad_() for x in inputs]
    before = [x.detach().clone() for x in (*inputs, *others)]
    outputs = call(*inputs, *others)
    sum(y.sum() for y in (outputs if isinstance(outputs, tuple) else (outputs,))).backward()
    for now, then in zip((*inputs, *others), before, strict=True):
        assert torch.equal(now, then)


@pytest.mark.parametrize("name", loss.IMPLEMENTATIONS)
def test_under_autocast_the_loss_computes_in_its_dtype_and_weights_get_fp32_gradients(name: str) -> None:
    call, (hidden, weight), (targets,) = case("loss", name)
    weight.requires_grad_()
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        from_fp32, from_bf16 = call(hidden, weight, targets), call(hidden.bfloat16(), weight, targets)
    assert from_fp32.dtype == torch.float32
    assert torch.equal(from_fp32, from_bf16)
    assert not torch.equal(from_fp32, call(hidden, weight, targets))
    from_fp32.backward()
    assert weight.grad.dtype == torch.float32


@pytest.mark.parametrize("name", loss.IMPLEMENTATIONS)
def test_a_loss_over_many_tokens_keeps_its_digits_in_bf16(name: str) -> None:
    hidden, weight = draw(1, 3000, 8).bfloat16(), draw(32, 8, seed=1).bfloat16()
    targets = torch.arange(3000, device=DEVICE)[None] % 32
    exact = loss.eager(hidden.double(), weight.double(), targets)
    assert loss.IMPLEMENTATIONS[name](hidden, weight, targets).item() == pytest.approx(exact.item(), rel=5e-4)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "bf16-true"])
@pytest.mark.parametrize("names", [{}, {"loss.name": "torch"}, TRITON], ids=["eager", "loss=torch", "triton"])
def test_every_parameter_gets_its_gradient_in_every_precision(precision: str, names: dict[str, str]) -> None:
    tokens = torch.randint(97, (2, 9), generator=torch.Generator().manual_seed(1))

    def gradients(names: dict[str, str], precision: str) -> dict[str, Tensor]:
        module = make_module(names | {"model.init_std": 0.2}).to(DEVICE)
        if precision == "bf16-true":
            to_bf16(module.model)
        with torch.autocast(DEVICE, torch.bfloat16, enabled=precision == "bf16-mixed"):
            total = module.loss_sum(tokens.to(DEVICE))
        assert total.dtype == torch.float32
        total.backward()
        assert all(p.grad is not None and p.grad.dtype == p.dtype for p in module.parameters())
        return {name: p.grad.double() for name, p in module.named_parameters()}

    exact = gradients({}, "32-true")
    allowed = 1e-5 if precision == "32-true" else 0.05
    for name, grad in gradients(names, precision).items():
        assert (grad - exact[name]).norm() <= allowed * exact[name].norm(), name


@pytest.mark.parametrize("layer", KERNELS)
def test_a_kernel_runs_where_it_is_named_and_only_there(monkeypatch: pytest.MonkeyPatch, layer: str) -> None:
    called = set()

    def recorded(name: str, kernel: Call) -> Call:
        def call(*inputs: object, **more: object) -> Tensor | tuple[Tensor, ...]:
            called.add(name)
            return kernel(*inputs, **more)

        return call

    for name in KERNELS.values():
        monkeypatch.setattr(kernels, name, recorded(name, getattr(kernels, name)))
    make_module({f"{layer}.name": "triton"}).to(DEVICE).loss_sum(torch.ones(1, 5, dtype=torch.int64, device=DEVICE))
    assert called == {KERNELS[layer]}


def test_without_triton_the_refusal_names_every_layer_and_what_to_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "AVAILABLE", False)
    with pytest.raises(UserError, match=r"norm=triton mlp=triton needs triton.*use norm=torch mlp=eager"):
        build_layers(make_config({"norm.name": "triton", "mlp.name": "triton"}))


def test_without_pytorchs_chunked_loss_the_refusal_names_what_to_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(nn, "LinearCrossEntropyOptions", raising=False)
    with pytest.raises(UserError, match="use loss=triton or loss=eager"):
        build_layers(make_config({"loss.name": "torch"}))


@pytest.mark.parametrize("layer", LAYERS)
def test_a_kernel_on_the_cpu_beside_a_gpu_is_refused(monkeypatch: pytest.MonkeyPatch, layer: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    config = make_config({f"{layer}.name": "triton"})
    assert triton_layers(config) == [f"{layer}=triton"]
    with pytest.raises(UserError, match=f"trainer=cpu {layer}=triton beside a usable GPU"):
        requirements.check(config)


def test_without_a_c_compiler_what_would_need_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(hardware, "c_compiler", lambda: None)
    config = make_config({"mlp.name": "triton", "compile": True, "trainer.accelerator": "gpu"})
    with pytest.raises(UserError, match=r"^mlp=triton compile=true is compiled on the GPU's first use"):
        requirements.check(config)
