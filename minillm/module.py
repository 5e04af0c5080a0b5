"""The training step: one batch is one optimizer step, its loss the mean over all of its tokens."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from lightning import LightningModule
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.strategies import ParallelStrategy
from torch import Tensor

from minillm import distributed, hardware
from minillm.apply import shard
from minillm.config import Config
from minillm.layers.loss import Loss
from minillm.model import Llama
from minillm.optim import build_optimizer, clip_gradients, lr_factor, set_hyperparameters, skip_unless_finite


class LlamaModule(LightningModule):
    """Trains `model` on batches `{"tokens": int64 (n, T + 1), "index": int64 (n,)}`.

    Micro-batches are split off inside the step, and each one's *sum* of losses is divided by the tokens of the whole
    step. So accumulation is a mean over tokens by construction, also where the last micro-batch is smaller. Ranks have
    equally many tokens in each step: the mean of their gradients is that over all tokens, too.
    """

    def __init__(
        self, config: Config, model: Llama, loss: Loss, bits_per_byte: Callable[[float], float | None]
    ) -> None:
        """Wrap `model`, which is as `apply.py` left it.

        Args:
            loss: (hidden (B, T, d), weight (V, d), targets (B, T)) -> sum over tokens in nats, fp32.
            bits_per_byte: of the validation text, from nats a token; gives None where the corpus is no text.
        """
        super().__init__()
        self.automatic_optimization = False
        self.config, self.model, self.loss, self.bits_per_byte = config, model, loss, bits_per_byte
        self.tokens = 0  # trained on so far, by all ranks
        self.val_loss_sum = torch.zeros(())
        self.val_tokens = 0

    def configure_model(self) -> None:
        if self.config.trainer.strategy == "fsdp":
            assert self.device_mesh is not None
            shard(self.model, self.device_mesh["data_parallel"], hardware.precision(self.config))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return build_optimizer(self.model, self.config.optim, self.config.seed)

    def on_train_start(self) -> None:
        optimizer = self.optimizers()
        assert isinstance(optimizer, LightningOptimizer)
        set_hyperparameters(optimizer.optimizer, self.config.optim)

    def loss_sum(self, tokens: Tensor) -> Tensor:
        """tokens (n, T + 1): each but the last predicts the next. The sum of the n T losses."""
        return self.loss(self.model(tokens[:, :-1]), self.model.lm_head.weight, tokens[:, 1:])

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> dict[str, Any]:
        tokens, optimizer = batch["tokens"], self.optimizers()
        assert isinstance(optimizer, LightningOptimizer)
        lr = self.config.optim.lr * lr_factor(self.global_step, self.config.trainer.max_steps, self.config.optim)
        for group in optimizer.param_groups:
            group["lr"] = lr
        targets = tokens.shape[0] * (tokens.shape[1] - 1)

        loss = torch.zeros((), device=tokens.device)
        micros = tokens.split(self.config.batch.micro)
        for number, micro in enumerate(micros, 1):
            with self.averaging(last=number == len(micros)):
                part = self.loss_sum(micro) / targets
                self.manual_backward(part)
            loss += part.detach()
        own_loss = loss.clone() if self.trainer.world_size > 1 else loss
        distributed.add_up(loss).div_(self.trainer.world_size)
        grad_norm = self.update(optimizer)

        self.tokens += targets * self.trainer.world_size
        return {"loss": loss, "grad_norm": grad_norm, "own_loss": own_loss, "lr": lr}

    def averaging(self, *, last: bool) -> AbstractContextManager[None]:
        """Around a micro-batch: ranks average their gradients once a step, in the last one's backward."""
        strategy = self.trainer.strategy if self.trainer.world_size > 1 else None
        return nullcontext() if last or not isinstance(strategy, ParallelStrategy) else strategy.block_backward_sync()

    def update(self, optimizer: LightningOptimizer) -> Tensor:
        """Clip, step, forget the gradients. Returns the gradient norm before clipping, on the device."""
        scaler = getattr(self.trainer.precision_plugin, "scaler", None)
        if scaler is not None:  # 16-mixed: the norm is that of the true gradients
            scaler.unscale_(optimizer.optimizer)
        grad_norm = clip_gradients(self.model.parameters(), self.config.optim.clip_norm)
        if scaler is None:  # else the scaler tells the optimizer itself
            skip_unless_finite(optimizer.optimizer, grad_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return grad_norm

    def on_validation_epoch_start(self) -> None:
        self.val_loss_sum, self.val_tokens = torch.zeros((), device=self.device), 0

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        tokens = batch["tokens"]
        self.val_loss_sum += self.loss_sum(tokens)
        self.val_tokens += tokens.shape[0] * (tokens.shape[1] - 1)

    def on_validation_epoch_end(self) -> None:
        counts = torch.tensor(float(self.val_tokens), dtype=torch.float64, device=self.device)
        sums = distributed.add_up(torch.stack((self.val_loss_sum.double(), counts)))
        self.val_loss_sum, self.val_tokens = sums[0], int(sums[1].item())

    def validation_row(self) -> dict[str, float | None]:
        """The last validation: nats a token over all its tokens (no mean of means), and bits per byte of the text."""
        if not self.val_tokens:
            return {"val/loss": None, "val/bits_per_byte": None}
        loss = self.val_loss_sum.item() / self.val_tokens
        return {"val/loss": loss, "val/bits_per_byte": self.bits_per_byte(loss)}

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["tokens"] = self.tokens

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.tokens = checkpoint["tokens"]
