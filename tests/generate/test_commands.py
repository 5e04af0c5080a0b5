"""generate.py and evaluate.py as they are typed."""

import io
import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from minillm.commands import evaluate, generate
from minillm.compose import check, read
from minillm.data import prepare_corpus
from minillm.evaluate import Evaluation
from minillm.loaded import load_run
from minillm.train import train

SMALL = (
    "data=text data.files=text.jsonl data.sequence_length=16 model.hidden_size=32 model.num_layers=1 "
    "tokenizer.vocab_size=300 trainer.max_steps=3 trainer.val_batches=1000 data.val_fraction=0.3 "
    "trainer=cpu logger=none trainer.progress_bar=false"
)
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a text and a run on it in `run`; the tests are typed there."""
    home = tmp_path_factory.mktemp("home")
    lines = [json.dumps({"text": f"the story {i} of 东西, with é and some more words\n" * 3}) for i in range(40)]
    (home / "text.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (home / "other.txt").write_text("another story, a short one")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        patch.setenv("MINILLM_CACHE", str(home / "cache"))
        (config,) = check(read(SMALL.split()))
        train(config, home / "run")
    return home


@pytest.fixture(autouse=True)
def at_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    monkeypatch.setenv("MINILLM_CACHE", str(home / "cache"))


@pytest.mark.parametrize("prompt", ["def f(x, y=1): ", "'quotes' \"both\" {a: [b", "东西 é\n\n", " =", "<|endoftext|>"])
@pytest.mark.parametrize("piped", [False, True])
def test_the_prompt_is_taken_byte_for_byte(
    prompt: str, piped: bool, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed = ["run=run", "tokens=1"]
    if piped:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(prompt.encode()), encoding="ascii"))
    else:
        typed.append(f"prompt={prompt}")
    assert generate.main([*typed, "data.sequence_length=64"]) == 0
    assert capsys.readouterr().out.startswith(prompt)


def test_what_is_generated_does_not_depend_on_the_layers_or_the_cache(capsys: Capture) -> None:
    outputs = set()
    for typed in ([], ["layers=triton"], ["norm=torch"], ["cache=false"]):
        assert generate.main(["run=run", "prompt=the story", "temperature=0", *typed]) == 0
        outputs.add(capsys.readouterr().out)
    assert len(outputs) == 1


WRONG = [
    (["prompt="], "the prompt is empty"),
    (["prompt=" + "東" * 16], "the model's context of 16"),
    (["prompt=\udcff"], "the prompt is not UTF-8: byte 0 is 0xff"),
    (["prompt=a", "top_k=301"], "top_k=301 is more than the vocabulary of 300"),
    (["prompt=a", "top_k=0"], "top_k=0: input should be greater than or equal to 1"),
    (["prompt=a", "temperature=-1"], "temperature=-1: input should be greater than or equal to 0"),
    (["prompt=a", "tokens=many"], "tokens=many: input should be a valid integer"),
    (["prompt=a", "seed=-1"], "seed=-1: input should be"),
    (["prompt=a", "trainer.lrr=1"], "trainer.lrr is unknown: did you mean optim.lr?"),
    (["prompt=a", "norm=foo"], "norm=foo is unknown"),
    (["prompt=a", "model.num_layers=2"], "model.num_layers=2, but the run has 1: leave it out"),
    (["prompt=a", "resume=last"], "resume=last is not for this command"),
    (["prompt=a", "run=nowhere"], "nowhere is no run's folder"),
    (["prompt=a", "experiment=norm_1b"], "leave it out with run="),
]


@pytest.mark.parametrize(("typed", "expected"), WRONG, ids=[expected for _, expected in WRONG])
def test_a_mistake_gives_one_sentence(typed: list[str], expected: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit, match="2"):
        generate.main(["run=run", *typed])
    output = capsys.readouterr()
    assert expected in output.err
    assert (output.out, len(output.err.splitlines())) == ("", 1)


def test_the_runs_own_text_gives_the_validation_loss_of_training(home: Path, capsys: Capture) -> None:
    assert evaluate.main(["run=run"]) == 0
    summary = json.loads((home / "run" / "summary.json").read_text())
    value = {line.split()[0]: float(line.split()[-3]) for line in capsys.readouterr().out.splitlines() if "±" in line}
    assert value["loss"] == pytest.approx(summary["val_loss"], abs=2e-4)
    assert value["perplexity"] == pytest.approx(math.exp(summary["val_loss"]), rel=1e-3)
    assert value["bits"] == pytest.approx(summary["val_bits_per_byte"], abs=2e-4)


def test_the_runs_own_file_is_its_own_by_a_relative_path_too(capsys: Capture) -> None:
    assert evaluate.main(["run=run", "data.files=text.jsonl"]) == 0
    assert "on the run's validation text" in capsys.readouterr().out


def test_all_of_another_text_is_evaluated_however_short(home: Path, capsys: Capture) -> None:
    typed = ["data=text", "data.files=other.txt", "data.sequence_length=500", "layers=triton"]
    assert evaluate.main(["run=run", *typed]) == 0
    output = capsys.readouterr().out
    (config,) = check(read([*SMALL.split()]))
    run = load_run(config, home / "run")
    assert run.tokenizer is not None
    end = run.tokenizer.token_to_id("<|endoftext|>")
    tokens = torch.tensor([[end, *run.tokenizer.encode("another story, a short one").ids, end]])
    with torch.no_grad():
        expected = run.loss(run.model(tokens[:, :-1]), run.model.lm_head.weight, tokens[:, 1:]).item()
    assert f"loss  {expected / (tokens.numel() - 1):.4f}\n" in output
    assert f"bits per byte  {expected / math.log(2) / 26:.4f}\n" in output


def test_another_text_is_cut_into_blocks_as_long_as_the_runs(home: Path, capsys: Capture) -> None:
    (home / "long.txt").write_text("another story, a short one " * 40)
    for typed in (["data.files=long.txt"], ["data=text", "data.files=long.txt"]):
        assert evaluate.main(["run=run", *typed]) == 0
        output = capsys.readouterr().out
        assert "blocks of 16\n" in output
        assert "fill no block and are left out" in output


def test_what_the_run_was_trained_on_is_not_evaluated(capsys: Capture) -> None:
    with pytest.raises(SystemExit, match="2"):
        evaluate.main(["run=run", "data.val_fraction=0.5"])
    assert "data.val_fraction=0.5, but the run was trained with 0.3" in capsys.readouterr().err


def test_the_error_is_that_of_the_mean_over_blocks(home: Path) -> None:
    from minillm.evaluate import evaluate as evaluated

    (config,) = check(read(SMALL.split()))
    run, blocks = load_run(config, home / "run"), prepare_corpus(config).val
    means: list[Any] = []
    for number in range(len(blocks)):
        tokens = blocks[[number]]["tokens"]
        with torch.no_grad():
            loss = run.loss(run.model(tokens[:, :-1]), run.model.lm_head.weight, tokens[:, 1:])
        means.append(loss.double() / 16)
    result = evaluated(run, blocks)
    assert result.blocks == len(means) > 4
    assert result.loss == pytest.approx(torch.stack(means).mean().item(), rel=1e-6)
    assert result.error == pytest.approx(torch.stack(means).std().item() / math.sqrt(len(means)), rel=1e-4)


def test_errors_go_through_to_perplexity_and_bits() -> None:
    rows = {name: (value, error) for name, value, error in Evaluation(2.0, 0.01, 9, 90, 4.0).rows()}
    assert rows["loss"] == (2.0, 0.01)
    assert rows["perplexity"][1] == pytest.approx((math.exp(2.01) - math.exp(1.99)) / 2, rel=1e-3)
    assert rows["bits per byte"] == pytest.approx((2.0 / math.log(2) / 4, 0.01 / math.log(2) / 4))


def test_the_speed_leaves_out_what_the_first_tokens_wait_for() -> None:
    told = generate.speed([10.0, 12.0, 12.5, 12.51, 12.52, 12.53], prompt=7)
    assert told == "5 tokens after a prompt of 7, the first after 2.00 s, then 100.0 a second (median)"
    assert generate.speed([10.0, 12.0], prompt=7) == "1 tokens after a prompt of 7, the first after 2.00 s"
    assert generate.speed([10.0], prompt=7) == "0 tokens after a prompt of 7"
