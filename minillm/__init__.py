"""minillm: a mini LLM training framework in which the implementation of a layer is a config choice."""

import kernels  # noqa: F401  first: where no GPU is usable it switches Triton's interpreter on, before lightning imports triton
