"""Small corpora in folders of their own."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from minillm.config import BatchConfig, Config, DataConfig, ModelConfig, TokenizerConfig, TrainerConfig

WORDS = ("the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "norms", "fused", "in", "one", "kernel")


def story(seed: int, words: int = 60) -> str:
    return " ".join(WORDS[(seed * 7 + i * i + i // 3) % len(WORDS)] for i in range(words)) + f" {seed}\n"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINILLM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., list[str]]:
    """Writes texts as .txt files, in their order, and gives their paths."""

    def write(texts: Sequence[str | bytes], folder: str = "text") -> list[str]:
        (tmp_path / folder).mkdir(exist_ok=True)
        paths = [tmp_path / folder / f"{number:03}.txt" for number in range(len(texts))]
        for path, text in zip(paths, texts, strict=True):
            path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))
        return [str(path) for path in paths]

    return write


@pytest.fixture
def make_config() -> Callable[..., Config]:
    """The parts of a config that the data depend on."""

    def make(files: list[str] | None = None, **settings: Any) -> Config:
        data = {"name": "text", "files": files or [], "sequence_length": 16, "val_fraction": 0.3, "num_workers": 0}
        tokenizer = {"path": settings.pop("tokenizer_path", None), "vocab_size": settings.pop("vocab_size", 300)}
        return Config.model_construct(
            model=ModelConfig.model_construct(vocab_size=settings.pop("model_vocab_size", None)),
            tokenizer=TokenizerConfig.model_validate(tokenizer),
            batch=BatchConfig(micro=2, accumulate=2),
            trainer=TrainerConfig.model_construct(val_batches=settings.pop("val_batches", 10**6), devices=1),
            seed=0,
            data=DataConfig.model_validate(data | settings),
        )

    return make
