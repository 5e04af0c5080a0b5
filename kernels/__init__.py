"""Fused Triton kernels as plain functions of tensors, usable without minillm.

    from kernels import rms_norm, add_rms_norm

Where no GPU is usable the same kernels run in Triton's interpreter: slow, but the same arithmetic. Triton decides that
when it is first imported, so import `kernels` before anything that imports triton (lightning does).
"""

import importlib.util

from kernels import operator as operator  # first: it switches the interpreter on

AVAILABLE = importlib.util.find_spec("triton") is not None
MAX_BLOCK_SIZE = 65536  # widest row of rms_norm_simple: one block, and a block's registers

if AVAILABLE:
    from kernels.adamw import adamw_stochastic as adamw_stochastic
    from kernels.linear_cross_entropy import linear_cross_entropy as linear_cross_entropy
    from kernels.rms_norm import add_rms_norm as add_rms_norm
    from kernels.rms_norm import rms_norm as rms_norm
    from kernels.rms_norm_simple import rms_norm_simple as rms_norm_simple
    from kernels.rotary import rotary as rotary
    from kernels.swiglu import swiglu as swiglu
    from kernels.swiglu import swiglu_linear as swiglu_linear
