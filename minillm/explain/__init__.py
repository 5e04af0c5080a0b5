"""Why an implementation is faster: the kernels that it launches, the bytes that they move, what it keeps, and what that
comes to in a training step.

`subjects.py` has the layers at their shapes, `count.py` counts on tensors without data, `card.py` says what a card has,
`measure.py` times and profiles where there is a GPU, `step.py` takes the whole step apart, `recorded.py` has what was
measured before; `claims.py` and `walk.py` go through the teaching example; `report.py` and `plot.py` show it all.
"""
