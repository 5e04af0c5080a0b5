"""The package's name is somebody else's too."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.process
def test_another_package_named_kernels_is_told_apart_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "__init__.py").write_text('__version__ = "0.1"\n')
    root = Path(__file__).parents[2]
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{root}"}
    command = [sys.executable, "-c", "import minillm"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "another package named kernels" in done.stderr.splitlines()[-1]
