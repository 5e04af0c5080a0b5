"""The kernel benchmark: is an implementation right, and how near does it come to what the memory allows?

Read `op.py` first: what an operator tells the benchmark. `rms_norm.py` is such an operator; one more is one more file
and one more line in `runner.OPS`.
"""
