"""The whole training step: ours beside a plain Llama, in turns, and where the time of each goes.

`variants.py` builds what is compared, `runner.py` measures it, `results.py` holds what was found, `report.py` says it.
"""
