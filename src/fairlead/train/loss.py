"""The loss of one micro-batch by the model's own forward, whole or with its last part in pieces of tokens.

In pieces, the model's own forward runs from the last hidden state on for some tokens at a time (head, caps, scales and
loss as the model has them), and goes back at once, so that no more than one piece of logits exists. Sums are then taken
piece by piece, which rounds differently from the whole.

Must not know: streaming.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from fairlead.errors import TrainError
from fairlead.train.packing import IGNORED

Add = Callable[[torch.Tensor, torch.Tensor], None]
"""Takes a parameter of the shell and a gradient of it."""


def whole(shell: Any, batch: Mapping[str, torch.Tensor], targets: int) -> torch.Tensor:
    """Sum of the losses of all targets, divided by the targets of the whole step; autograd goes through it as usual."""
    return shell(**batch, use_cache=False, num_items_in_batch=targets).loss


def in_pieces(
    shell: Any,
    batch: Mapping[str, torch.Tensor],
    targets: int,
    tokens: int,
    add: Add,
    head: Callable[[], None] = lambda: None,
) -> torch.Tensor:
    """The same, with at most `tokens` rows of logits at a time; gradients of the head are given to `add`.

    `head` returns when its weights are there.
    """
    inputs = {key: value for key, value in batch.items() if key != "labels"}
    base = getattr(shell, shell.base_model_prefix)
    out = base(**inputs, use_cache=False)
    others = [
        key for key, value in out.items() if value is not None and key not in {"last_hidden_state", "past_key_values"}
    ]
    if others:
        text = f"the head of {type(shell).__name__} also reads {', '.join(others)}: its loss has no pieces"
        raise TrainError("train/config", text, hint="head_tokens = 0: all logits of a micro-batch at once")
    labels = nn.functional.pad(batch["labels"], (0, 1), value=IGNORED)[..., 1:].reshape(1, -1)
    head()
    tail = _Tail(shell, out, labels, targets, tokens, add)
    loss: torch.Tensor = _Pieces.apply(tail, out.last_hidden_state)
    return loss


@dataclass(frozen=True, slots=True)
class _Tail:
    shell: Any
    out: Any
    labels: torch.Tensor
    targets: int
    tokens: int
    add: Add

    def piece(self, hidden: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The model's own forward with a base model that only gives this hidden state."""
        name = self.shell.base_model_prefix
        base = self.shell._modules[name]
        self.shell._modules[name] = _Given(type(self.out)(last_hidden_state=hidden))
        try:
            return self.shell(
                input_ids=labels, labels=labels, shift_labels=labels, num_items_in_batch=self.targets, use_cache=False
            ).loss
        finally:
            self.shell._modules[name] = base


class _Given(nn.Module):
    """A base model that is done; so is each part of it that a head may call by itself (`model.decoder`)."""

    def __init__(self, out: Any) -> None:
        super().__init__()
        self.out = out

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.out

    def __getattr__(self, name: str) -> Any:
        return self


class _Pieces(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tail: _Tail, hidden: torch.Tensor) -> torch.Tensor:
        rows = hidden.detach().reshape(1, -1, hidden.shape[-1])
        back = torch.empty_like(rows)
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        params = [param for param in tail.shell.parameters() if param.requires_grad and param.device == hidden.device]
        for begin in range(0, rows.shape[1], tail.tokens):
            piece = slice(begin, begin + tail.tokens)
            with torch.enable_grad():
                row = rows[:, piece].detach().requires_grad_()
                loss = tail.piece(row, tail.labels[:, piece])
            found = torch.autograd.grad(loss, [row, *params], allow_unused=True)
            back[:, piece] = found[0]
            for param, gradient in zip(params, found[1:], strict=True):
                if gradient is not None:
                    tail.add(param, gradient)
            total += loss.detach()
        ctx.save_for_backward(back.reshape(hidden.shape))
        return total

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[None, torch.Tensor]:
        (back,) = ctx.saved_tensors
        return None, back * grad
