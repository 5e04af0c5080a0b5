"""Which of PyTorch's kernels runs scaled_dot_product_attention.

Attention is not ours, and the model calls it without saying how. On an H200 cuDNN's kernels take two thirds of the time
of PyTorch's flash kernels, but which come first depends on the cuDNN that torch was built with. So it is said here.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from minillm.config import ModelConfig

NAMES = {
    SDPBackend.CUDNN_ATTENTION: "cudnn",
    SDPBackend.FLASH_ATTENTION: "flash",
    SDPBackend.EFFICIENT_ATTENTION: "efficient",
    SDPBackend.MATH: "math",
}
ANY_LENGTH = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def allowed(attention: str, sequence_length: int, device: torch.device) -> list[SDPBackend]:
    """The backends that may run on `device`, the first that can does. `attention` is `trainer.attention`.

    cuDNN comes first on Hopper and data-centre Blackwell, where PyTorch prefers it too, for lengths that fill its tiles
    of 128: at others its gradients were wrong in some versions (pytorch#169849), and no gain is known.
    """
    if attention == "flash":
        return [SDPBackend.FLASH_ATTENTION]
    if attention == "cudnn":
        return [SDPBackend.CUDNN_ATTENTION]
    tuned = device.type == "cuda" and torch.cuda.get_device_capability() in ((9, 0), (10, 0), (10, 3))
    return [SDPBackend.CUDNN_ATTENTION, *ANY_LENGTH] if tuned and sequence_length % 128 == 0 else ANY_LENGTH


@lru_cache
def settle_own_order() -> None:
    """On a GPU: let PyTorch settle which backends it prefers, as it does when attention is first called.

    Left for later it would be settled inside the context below, which on leaving would put back an order from before,
    flash first: code outside, such as another model of a comparison, would not run on what PyTorch prefers.
    """
    q = torch.empty((1, 1, 128, 64), dtype=torch.float16, device="cuda")
    torch._fused_sdp_choice(q, q, q)


@contextmanager
def attention_kernels(attention: str, sequence_length: int, device: torch.device) -> Iterator[None]:
    """Inside, attention on `device` runs on the kernels that `allowed` names. Enter it around training as a whole.

    Eager: the choice is made in forward, and backward keeps it. Compiled: it is made while tracing, in the first step.
    The compiler's cache on disk does not know of it (pytorch#185449) and would hand out a graph with another backend:
    the tag is part of its key.
    """
    backends = allowed(attention, sequence_length, device)
    if device.type == "cuda":
        settle_own_order()
    tag = "attention=" + ",".join(NAMES[backend] for backend in backends)
    with sdpa_kernel(backends, set_priority=True), torch.compiler.config.patch(cache_key_tag=tag):  # type: ignore[attr-defined]
        yield


def backend_that_runs(
    attention: str, model: ModelConfig, sequence_length: int, dtype: torch.dtype, device: torch.device
) -> str | None:
    """`cudnn`, `flash`, `efficient` or `math`: PyTorch's own answer for the model's shape; None where none can run."""

    def heads(count: int) -> torch.Tensor:
        shape = (1, sequence_length, count, model.head_dim)
        return torch.empty(shape, dtype=dtype, device=device, requires_grad=True).transpose(1, 2)

    q, k, v = heads(model.num_heads), heads(model.num_kv_heads), heads(model.num_kv_heads)
    with attention_kernels(attention, sequence_length, device), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its reasons against each backend
        try:
            choice = torch._fused_sdp_choice(q, k, v, is_causal=True, enable_gqa=model.num_heads != model.num_kv_heads)
        except RuntimeError:  # no backend is viable
            return None
    return NAMES.get(SDPBackend(choice))
