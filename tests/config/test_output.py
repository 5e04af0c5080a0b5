"""A program whose output cannot be written goes on; for a reader that has gone see test_process.py."""

import os
import subprocess
import sys

import pytest

from minillm.compose import ROOT

PROGRAM = """
import sys
from minillm.output import go_on_unheard
go_on_unheard()
for line in range(3):
    print(line, flush=True)
    print(line, file=sys.stderr)
sys.exit(3)
"""


@pytest.mark.process
@pytest.mark.parametrize("streams", [">/dev/full 2>&1", ">&- 2>&-"], ids=["full disk", "closed from the start"])
def test_output_that_cannot_be_written_does_not_end_the_program(streams: str) -> None:
    command = ["sh", "-c", f'exec "$@" {streams}', "sh", sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": str(ROOT)}, timeout=60, check=False)
    assert done.returncode == 3
