"""No key of the environment reaches a file of the run or its output."""

from pathlib import Path

import pytest

from tests.training.test_loggers import train

SECRETS = {
    name: f"planted-{name.lower()}-0123456789abcdef01234567" for name in ("WANDB_API_KEY", "HF_TOKEN", "MY_TOKEN")
}


@pytest.mark.process
def test_nothing_of_the_environments_keys_is_written_or_printed(tmp_path: Path) -> None:
    output = train(tmp_path / "run", WANDB_MODE="offline", **SECRETS)
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert {".wandb", ".ckpt", ".csv", ".json", ".yaml"} <= {path.suffix for path in files}
    for secret in SECRETS.values():
        assert secret not in output
        assert [path for path in files if secret.encode() in path.read_bytes()] == []
