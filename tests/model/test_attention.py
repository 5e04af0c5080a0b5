"""Attention runs on the kernels that were asked for, or on the fastest for the shape."""

import subprocess
import sys

import pytest
import torch

from minillm.attention import ANY_LENGTH, allowed, attention_kernels, backend_that_runs
from minillm.build import build_module
from tests.training.conftest import make_config

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("capability", "sequence_length", "first"),
    [
        ((9, 0), 1024, "CUDNN_ATTENTION"),
        ((10, 0), 2048, "CUDNN_ATTENTION"),
        ((9, 0), 1000, "FLASH_ATTENTION"),
        ((8, 0), 1024, "FLASH_ATTENTION"),
        ((12, 0), 1024, "FLASH_ATTENTION"),
    ],
)
def test_cudnn_comes_first_where_it_is_fastest_and_right(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], sequence_length: int, first: str
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    order = allowed("auto", sequence_length, torch.device("cuda"))
    assert order[0].name == first
    assert set(ANY_LENGTH) <= set(order)  # what the first cannot do, another can


def test_the_choice_holds_inside_and_is_part_of_the_compilers_cache_key() -> None:
    before = torch._C._get_sdp_priority_order(), torch.compiler.config.cache_key_tag
    tags = set()
    for attention in ("auto", "flash", "cudnn"):
        with attention_kernels(attention, 128, CPU):
            tags.add(torch.compiler.config.cache_key_tag)
            assert torch.backends.cuda.cudnn_sdp_enabled() == (attention == "cudnn")
            assert torch.backends.cuda.math_sdp_enabled() == (attention == "auto")
    assert len(tags) == 3
    assert (torch._C._get_sdp_priority_order(), torch.compiler.config.cache_key_tag) == before
    assert torch.backends.cuda.cudnn_sdp_enabled()


def test_what_runs_is_pytorchs_own_answer() -> None:
    model = make_config().model
    assert backend_that_runs("auto", model, 16, torch.float32, CPU) == "flash"
    assert backend_that_runs("auto", model, 16, torch.float64, CPU) in ("flash", "math")
    assert backend_that_runs("cudnn", model, 16, torch.float32, CPU) is None


@pytest.mark.gpu
@pytest.mark.parametrize("compile", [False, True])
@pytest.mark.parametrize("attention", ["flash", "cudnn"])
@pytest.mark.parametrize("num_kv_heads", [2, 4])
def test_the_kernels_that_were_asked_for_are_those_that_run(attention: str, compile: bool, num_kv_heads: int) -> None:
    config = make_config(
        {
            "model.hidden_size": 256,
            "model.num_kv_heads": num_kv_heads,
            "trainer.accelerator": "gpu",
            "trainer.precision": "bf16-true",
            "compile": compile,
        }
    )
    assert backend_that_runs(attention, config.model, 128, torch.bfloat16, torch.device("cuda")) == attention
    torch.compiler.reset()
    module = build_module(config, type("Corpus", (), {"bits_per_byte": None}))
    tokens = torch.randint(97, (2, 129), device="cuda")
    with attention_kernels(attention, 128, tokens.device):
        module.loss_sum(tokens).backward()
        with torch.profiler.profile() as profile:
            module.loss_sum(tokens).backward()
    names = " ".join(event.name for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA)
    marks = {"flash": "pytorch_flash", "cudnn": "cudnn_generated"}  # cuDNN's names have "flash" in them, too
    assert {name for name, mark in marks.items() if mark in names} == {attention}


@pytest.mark.gpu
def test_pytorchs_own_order_is_as_it_was_when_the_choice_is_left() -> None:
    """In processes of their own: the order is settled once in each."""
    empty = "q = torch.empty((1, 1, 128, 64), dtype=torch.float16, device='cuda')\n"
    settle = "torch._fused_sdp_choice(q, q, q)\n"
    enter = "from minillm.attention import attention_kernels as kernels\nwith kernels('flash', 128, q.device): pass\n"
    orders = [
        subprocess.run(
            [sys.executable, "-c", f"import torch\n{empty}{before}{settle}print(torch._C._get_sdp_priority_order())"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for before in ("", enter)
    ]
    assert orders[0] == orders[1]
