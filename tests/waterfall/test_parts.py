"""Every kernel has its line: by its name, by the part that launched it, by both."""

import pytest

from minillm.waterfall.parts import FLOOR, PARTS, UNATTRIBUTED, Kernel, by_part, part_of


@pytest.mark.parametrize(
    ("name", "part", "line"),
    [
        ("nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_NTN", "mlp", "matmul: mlp"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", "attention", "matmul: qkv, out"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm>", "loss", "matmul: head"),
        ("void cublasLt::splitKreduce_kernel<32, 16, int, float>", "", "matmul: unknown"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_7", "attention", "attention"),
        ("void cudnn::fusion::compute_dot_do_o_specialized<true, 4>", "", "attention"),
        ("void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<...>", "", "attention"),
        ("fmha_cutlassF_bf16_aligned_64x64_rf_sm80", "attention", "attention"),
        ("scale_and_round", "", "head and loss"),
        ("adamw_stochastic_kernel", "", "optimizer"),
        ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdamMathFunctor>", "", "optimizer"),
        ("Memcpy HtoD (Pageable -> Device)", "optimizer", "optimizer"),
        ("rms_norm_backward", "", "norm"),
        ("rotary_forward_0", "", "rope"),
        ("swiglu_backward_3", "", "activation"),
        ("cross_entropy_rows", "", "head and loss"),
        ("triton_red_fused__to_copy_add_mul_pow_rsqrt_2", "", "compiled"),
        ("void at::native::vectorized_elementwise_kernel<4, CUDAFunctor_add<BFloat16>>", "norm", "norm"),
        ("void at::native::vectorized_elementwise_kernel<4, FillFunctor<float>>", "attention", "copies and fills"),
        ("void at::native::elementwise_kernel<128, 4, direct_copy_kernel_cuda>", "", "copies and fills"),
        ("void at::native::elementwise_kernel<128, 4, direct_copy_kernel_cuda>", "norm", "norm"),
        ("void at::native::vectorized_elementwise_kernel<4, CUDAFunctor_add>", "gradient sums", "gradient sums"),
        ("void at::native::embedding_backward_feature_kernel<...>", "", "embedding"),
        ("void at::native::reduce_kernel<512, 1, MeanOps>", "", "other elementwise"),
        ("somebodys_kernel", "", UNATTRIBUTED),
    ],
)
def test_a_kernel_has_its_line(name: str, part: str, line: str) -> None:
    assert part_of(name, part) == line


def test_the_lines_are_milliseconds_a_step_in_order() -> None:
    kernels = [Kernel("k", 0, 500, "norm"), Kernel("k", 900, 1500, "norm"), Kernel("m", 0, 4000, "attention")]
    assert list(by_part(kernels, steps=2).items()) == [("attention", 2.0), ("norm", 1.0)]
    assert set(FLOOR) < set(PARTS)
