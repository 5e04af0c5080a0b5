"""export: transformers loads what was trained here, model and tokenizer, and says the same."""

import json
from pathlib import Path

import pytest
import torch

from minillm.commands import export
from minillm.compose import check, read
from minillm.errors import UserError
from minillm.hf import packed
from minillm.loaded import load_run
from minillm.train import train

transformers = pytest.importorskip("transformers")
SMALL = (
    "data.files=text.jsonl data=text data.sequence_length=16 model.hidden_size=32 model.num_layers=2 "
    "model.rope_theta=99 tokenizer.vocab_size=300 trainer.max_steps=2 batch.micro=2 trainer=cpu logger=none "
    "trainer.progress_bar=false"
)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run on a small text; the working directory is beside it."""
    return small_run(tmp_path, monkeypatch)


def small_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *typed: str) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINILLM_CACHE", str(tmp_path / "cache"))
    lines = [json.dumps({"text": f"the story {i} of 东西, with é and some more words\n" * 3}) for i in range(40)]
    Path("text.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (config,) = check(read([*SMALL.split(), *typed]))
    train(config, tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize("typed", [[], ["model.tie_embeddings=false"], ["trainer.precision=bf16-true"]], ids=str)
def test_transformers_says_what_the_model_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: list[str]
) -> None:
    folder = small_run(tmp_path, monkeypatch, *typed)
    assert export.main([f"run={folder}", "out=out"]) == 0
    theirs = transformers.AutoModelForCausalLM.from_pretrained("out", dtype=torch.float32)
    assert type(theirs) is transformers.LlamaForCausalLM
    (config,) = check(read([*SMALL.split(), *typed, "trainer.precision=32-true"]))
    ours = load_run(config, folder)
    tokens = torch.randint(300, (2, 16))
    with torch.no_grad():
        expected = ours.model.logits(ours.model(tokens))
        torch.testing.assert_close(theirs(tokens).logits, expected, rtol=1e-5, atol=1e-5)


def test_the_tokenizer_gives_the_same_tokens_and_the_same_text(run: Path) -> None:
    export.main([f"run={run}", "out=out"])
    theirs = transformers.AutoTokenizer.from_pretrained("out")
    (config,) = check(read(SMALL.split()))
    ours = load_run(config, run).tokenizer
    assert ours is not None
    for text in ("def f(x, y=1): ", '东西 "q"  é\n\t x', " a , b ."):
        ids = theirs(text).input_ids
        assert ids == ours.encode(text, add_special_tokens=False).ids
        assert theirs.decode(ids) == text
    assert theirs.eos_token == "<|endoftext|>"
    model = transformers.AutoModelForCausalLM.from_pretrained("out")
    assert model.generation_config.eos_token_id == theirs.eos_token_id


def test_what_was_exported_can_be_started_from(run: Path, tmp_path: Path) -> None:
    export.main([f"run={run}", "out=out"])
    kept = " ".join(word for word in SMALL.split() if not word.startswith("model."))
    (config,) = check(read([*kept.split(), "init_from=out", "optim.lr=1e-12"]))
    train(config, tmp_path / "second")
    first, second = (
        torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
        for folder in (run, tmp_path / "second")
    )
    for name, tensor in first.items():
        torch.testing.assert_close(second[name], tensor, rtol=1e-5, atol=1e-6)


def test_who_may_read_one_of_the_files_may_read_all(run: Path) -> None:
    export.main([f"run={run}", "out=out"])
    assert len({file.stat().st_mode for file in Path("out").iterdir()}) == 1


def test_a_folder_that_holds_a_model_is_left_alone(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    export.main([f"run={run}", "out=out"])
    with pytest.raises(SystemExit, match="2"):
        export.main([f"run={run}", "out=out"])
    assert "already holds config.json, model.safetensors" in capsys.readouterr().err


def test_a_checkpoint_that_is_not_whole_is_refused(run: Path) -> None:
    (config,) = check(read(SMALL.split()))
    with pytest.raises(UserError, match="it is not whole"):
        packed({}, load_run(config, run).config.model)
