"""minillm: a mini LLM training framework in which the implementation of a layer is a config choice."""

import kernels  # first: where no GPU is usable it switches Triton's interpreter on, before lightning imports triton

if not hasattr(kernels, "operator"):
    raise ImportError(
        f"{kernels.__file__} is another package named kernels (Hugging Face publishes one), not minillm's: "
        "pip uninstall kernels, or put the repository first on PYTHONPATH"
    )
