"""Nothing grows with the steps."""

import os
from pathlib import Path
from typing import Any

import pytest

from minillm.module import LlamaModule
from tests.reliability.conftest import Run

STEPS = 2000


@pytest.mark.slow
def test_host_memory_and_open_files_are_flat_over_2000_steps(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    step_of, seen = LlamaModule.training_step, {}

    def watched(self: LlamaModule, batch: dict[str, Any], batch_idx: int) -> dict[str, Any]:
        if self.global_step in (STEPS // 4, STEPS - 1):
            resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            seen[self.global_step] = resident, len(os.listdir("/proc/self/fd"))
        return step_of(self, batch, batch_idx)

    monkeypatch.setattr(LlamaModule, "training_step", watched)
    run({"trainer.max_steps": STEPS, "trainer.val_every_steps": 50, "checkpoint.every_steps": 20})
    (early, files_early), (late, files_late) = seen.values()
    assert files_late <= files_early
    assert late - early < 8 * 2**20, f"{(late - early) / 2**20:.1f} MiB more"  # about 5 KiB a step would fail
