"""torch.compile's form for any number of rows, which this process, interpreting, would not meet."""

import os
import subprocess
import sys

import pytest


@pytest.mark.process
def test_every_operator_can_be_traced_with_a_number_of_rows_that_is_a_symbol() -> None:
    command = [sys.executable, "-W", "ignore", "-m", "tests.kernels.trace_symbols"]
    environment = os.environ | {"TRITON_INTERPRET": "0"}  # the interpreter's operators are opaque
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert result.returncode == 0, result.stderr[-2000:]
