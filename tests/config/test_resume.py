"""resume=: the old run's configuration with what is typed over it, in the old run's folder."""

import os
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from minillm import folders
from minillm.cli import checked
from minillm.compose import check, read
from minillm.config import Config
from minillm.errors import UserError
from minillm.layers import layer_names


def stored_run(folder: Path, *typed: str) -> Path:
    """A run's folder as training leaves it, as far as resuming looks at it."""
    (config,) = check(read(list(typed)))
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "checkpoints" / "last.ckpt").touch()
    OmegaConf.save(config.model_dump(), folder / "config.yaml")
    return folder


def resumed(*typed: str) -> Config:
    (config,) = check(read(list(typed)))
    return config


def test_the_stored_configuration_is_the_base(tmp_path: Path) -> None:
    run = stored_run(
        tmp_path / "a run (1)", "model=15m", "norm=triton", "trainer.max_steps=7", "seed=3", "optim.lr=1e-5"
    )
    config = resumed(f"resume={run}")
    assert config == check(read(["model=15m", "norm=triton", "trainer.max_steps=7", "seed=3", "optim.lr=1e-5"]))[
        0
    ].model_copy(update={"resume": str(run)})


def test_what_is_typed_goes_over_it(tmp_path: Path) -> None:
    run = stored_run(tmp_path, "norm=triton", "norm.fuse_residual=false", "trainer.max_steps=7", "optim.lr=1e-5")
    config = resumed(f"resume={run}", "norm=eager", "trainer.max_steps=9", "trainer=cpu")
    assert (config.norm.name, config.norm.fuse_residual) == ("eager", True)
    assert (config.trainer.max_steps, config.trainer.accelerator) == (9, "cpu")
    assert config.optim.lr == 1e-5  # not typed


def test_other_data_leave_nothing_of_those_before_but_the_length_of_a_block(tmp_path: Path) -> None:
    stored_run(tmp_path, "data=hub", "data.dataset=a/b", "data.subset=c", "data.sequence_length=64")
    config = resumed(f"resume={tmp_path}", "data=stdlib")
    assert (config.data.name, config.data.dataset, config.data.subset) == ("stdlib", None, None)
    assert config.data.sequence_length == 64
    assert resumed(f"resume={tmp_path}", "data=stdlib", "data.sequence_length=32").data.sequence_length == 32


def test_layers_stands_for_all_four_there_too(tmp_path: Path) -> None:
    run = stored_run(tmp_path, "norm=triton", "norm.fuse_residual=false", "trainer.max_steps=7")
    config = resumed("mlp=eager", "layers=triton", "loss=torch", f"resume={run}")
    assert layer_names(config) == {"norm": "triton", "rope": "triton", "mlp": "eager", "loss": "torch"}
    assert config.norm.fuse_residual is True


def test_a_configuration_that_names_code_is_refused(tmp_path: Path) -> None:
    run = stored_run(tmp_path)
    with (run / "config.yaml").open("a") as file:
        file.write("hydra: {callbacks: {x: {_target_: os.mkdir, path: ran}}}\n")
    with pytest.raises(UserError, match=r"config.yaml has hydra, which no run writes: remove it"):
        resumed(f"resume={run}")


def test_mistakes_are_found_there_too(tmp_path: Path) -> None:
    run = stored_run(tmp_path)
    with pytest.raises(UserError, match=r"trainer\.lrr is unknown"):
        resumed(f"resume={run}", "trainer.lrr=3")
    with pytest.raises(UserError, match="experiment=norm_1b sets up a new run"):
        resumed(f"resume={run}", "experiment=norm_1b")


def test_a_damaged_configuration_is_named_with_the_line(tmp_path: Path) -> None:
    run = stored_run(tmp_path)
    (run / "config.yaml").write_text("seed: 1\nmodel: : [")
    with pytest.raises(UserError, match=r"config\.yaml\", line 2") as told:
        resumed(f"resume={run}")
    assert "\n" not in str(told.value)
    (run / "config.yaml").write_bytes(b"seed: \xff")
    with pytest.raises(UserError, match=r"config\.yaml cannot be read \(.*\): mend it"):
        resumed(f"resume={run}")


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = stored_run(tmp_path)
    monkeypatch.setattr(os, "access", lambda path, how: False)
    with pytest.raises(UserError, match=rf"{run} is no folder that you may write to: get the permission, or go on in"):
        checked([f"resume={run}"])


def test_a_run_killed_between_its_first_checkpoint_and_its_link_can_go_on(tmp_path: Path) -> None:
    run = stored_run(tmp_path)
    (run / "checkpoints" / "last.ckpt").rename(run / "checkpoints" / "step_00000001.ckpt")
    assert resumed(f"resume={run}").resume == str(run)


def test_the_run_goes_on_in_its_folder(tmp_path: Path) -> None:
    run = stored_run(tmp_path)
    assert f"hydra.run.dir='{run}'" in read([f"resume={run}"]).overrides


def test_last_is_the_newest_run_with_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "RUNS", tmp_path)
    with pytest.raises(UserError, match=r"no run under .* has a checkpoint"):
        resumed("resume=last")
    for seconds, name in enumerate(("2026-01-01/b", "2026-01-02_sweep/0_a", "2026-01-01/c")):
        run = stored_run(tmp_path / name, f"seed={seconds}")
        os.utime(run / "checkpoints" / "last.ckpt", (seconds, seconds))
    (tmp_path / "2026-01-03" / "without_checkpoint").mkdir(parents=True)
    assert resumed("resume=last").seed == 2
