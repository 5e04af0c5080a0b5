"""Where a training step's time goes: its kernels by part of the model, and what of it fused layers could not save.

`ranges.py` marks the model's parts from outside, `trace.py` records a few steps and finds the part behind every kernel,
`parts.py` gives each kernel its line, `traffic.py` counts the bytes that have to move, `account.py` adds it all up.
"""
