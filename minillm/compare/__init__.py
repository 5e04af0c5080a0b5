"""Is it really faster, by how much, with what certainty, and is training still the same?

plan -> rounds of worker processes that take turns (runner, crew, worker, turns) -> records -> results -> report.
"""
