"""W&B without a key, a terminal or a network: silent, offline, complete."""

import glob
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from minillm import wandb_log

Run = Callable[..., tuple[dict[str, Any], Path]]
SCRIPT = """
import sys
from pathlib import Path
from minillm.train import train
from tests.training.conftest import make_config
train(make_config({"logger.name": "wandb"}), Path(sys.argv[1]))
"""


def started(folder: Path, before: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """A run in a process of its own, with a W&B of its own and nobody to answer a prompt; `before` is run first."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("WANDB_")}  # WANDB_SERVICE is this process's
    clean |= {"NETRC": str(folder.parent / "no-netrc")}
    return subprocess.run(
        [sys.executable, "-c", before + SCRIPT, str(folder)],
        env=clean | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def train(folder: Path, **environment: str) -> str:
    """The output of a run that ends well."""
    result = started(folder, **environment)
    assert result.returncode == 0, result.stderr
    return result.stdout + result.stderr


def history(folder: Path) -> list[dict[str, float]]:
    """What the offline files of a run hold, in order."""
    found = []
    for file in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(file)]
        lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
        for line in lines:
            record = json.loads(line)
            if record["type"] == "history":
                found.append(record["history"]["item"])
    return found


@pytest.mark.process
def test_a_default_run_is_quiet_offline_and_goes_on_in_one_wandb_run(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    output = train(folder).splitlines()
    assert len(output) <= 30
    assert output[-1] == str(folder)
    assert sum("wandb sync" in line for line in output) == 1
    for chatter in ("Tip", "GPU available", "Warning", "rank_zero", "Seed set"):
        assert not any(chatter in line for line in output), chatter
    monkeypatch.setenv("WANDB_MODE", "offline")
    capsys.readouterr()
    run({"logger.name": "wandb", "trainer.max_steps": 9, "resume": "last"})
    (pattern,) = re.findall(r"to upload: wandb sync (\S+)", capsys.readouterr().out)
    assert len(glob.glob(pattern)) == 2  # all parts, in one command: W&B keeps them in order
    logged = history(folder)
    assert [row["_step"] for row in logged] == list(range(1, 10))
    assert {"train/loss", "train/lr", "tokens", "perf/tokens_per_sec", "perf/data_wait_ms"} <= set(logged[-1])
    assert len({file.name for file in folder.glob("wandb/offline-run-*/*.wandb")}) == 1  # one id


def test_wandb_can_be_disabled(run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    _, folder = run({"logger.name": "wandb"})
    assert "disabled" in capsys.readouterr().out
    assert not list(folder.glob("wandb/*run-*"))


def test_online_needs_a_key_and_a_server_that_answers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("WANDB_MODE", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")  # nobody listens on the discard port
    monkeypatch.setattr(wandb_log, "answers", lambda host, port: True)
    assert wandb_log.mode() == "offline"  # no key
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login user password secret\n")
    assert wandb_log.mode() == "online"
    monkeypatch.undo()


def test_a_server_that_does_not_answer_means_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    assert wandb_log.mode() == "offline"


@pytest.mark.parametrize(("chosen", "mode"), [("offline", "offline"), ("dryrun", "offline"), ("disabled", "disabled")])
def test_wandb_mode_is_honoured(monkeypatch: pytest.MonkeyPatch, chosen: str, mode: str) -> None:
    monkeypatch.setenv("WANDB_MODE", chosen)
    assert wandb_log.mode() == mode


class Refusal(BaseHTTPRequestHandler):
    """Of a server that takes no key."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.send_error(401)

    def do_GET(self) -> None:
        self.do_POST()

    def log_message(self, *message: object) -> None:
        """Say nothing."""


@pytest.mark.process
def test_a_server_that_refuses_the_key_makes_the_run_an_offline_one(tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Refusal) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        said = train(tmp_path / "run", WANDB_API_KEY="0" * 40, WANDB_BASE_URL=f"http://127.0.0.1:{server.server_port}")
        server.shutdown()
    assert re.search(r"warning: W&B does not take this run \(.*401.*\): it is written offline", said)
    assert "W&B is offline; to upload: wandb sync" in said
    assert "Loaded credentials" not in said and "Failed to export" not in said
    assert [item["_step"] for item in history(tmp_path / "run")] == [1, 2, 3, 4, 5, 6]


@pytest.mark.process
def test_an_address_that_is_none_makes_the_run_an_offline_one(tmp_path: Path) -> None:
    said = train(tmp_path / "run", WANDB_API_KEY="0" * 40, WANDB_BASE_URL="http://host:port")
    (warning,) = (line for line in said.splitlines() if line.startswith("warning: "))
    assert re.search(r"W&B does not take this run \(.*base_url.*http://host:port.*\): it is written offline", warning)
    assert [item["_step"] for item in history(tmp_path / "run")] == [1, 2, 3, 4, 5, 6]
