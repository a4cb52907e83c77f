"""Whether a model keeps texts apart that share a row and are told by their positions alone; of plain transformers."""

from __future__ import annotations

import torch
from transformers import AutoModelForCausalLM

LENGTH = 8
"""Tokens of each of two texts."""


def keeps_apart(config) -> bool:
    """Nothing of the first text can move what is said of the second: its derivative is exactly zero.

    A weight of attention that is masked is exactly zero, and so is everything that is multiplied by it; state that is
    carried on, as in Mamba, and convolutions are not.
    """
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    model.config.use_cache = False
    inputs = []

    def held(module, args, output):
        inputs.append(output.detach().requires_grad_())
        return inputs[-1]

    model.get_input_embeddings().register_forward_hook(held)
    ids = torch.randint(3, 96, (2, 2 * LENGTH))
    positions = torch.arange(LENGTH).repeat(2).expand(2, -1)
    logits = model(input_ids=ids, position_ids=positions).logits[:, LENGTH:]
    (logits * torch.randn_like(logits)).sum().backward()
    first, second = inputs[0].grad.split(LENGTH, dim=1)
    assert second.abs().max() > 0
    return not first.any()
