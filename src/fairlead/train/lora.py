"""Adapters of low rank on a frozen base (LoRA, arxiv.org/abs/2106.09685): the peft library's modules, names and files.

Only adapters are trained; of the base 4 bytes a parameter are kept in place of 16, and its layers stream as ever.
Equal to the bit to peft's model in memory, whose adapters compute in the run's dtype as all else does.

Must not know: engines, stores.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fairlead.errors import TrainError
from fairlead.train.config import Lora
from fairlead.train.exports import replacing, save
from fairlead.train.layout import Block
from fairlead.train.model import Parts, on_meta
from fairlead.train.rounding import stream

NAME = "default"
"""Of the adapter; peft's own."""
_BASE = ".base_layer."


def adapted(model: Any, asked: Lora) -> Any:
    """Put adapters into a skeleton, in place; all else is frozen. Raises TrainError where peft cannot."""
    import peft

    try:
        with on_meta():
            peft.inject_adapter_in_model(_config(asked), model, NAME)
    except (ValueError, NotImplementedError) as exc:
        raise TrainError(
            "train/lora",
            f"{type(model).__name__} takes no adapters at {', '.join(asked.targets)}: {str(exc).splitlines()[0]}",
            hint='[lora] targets: the last parts of names of its linear layers, such as "q_proj"',
        ) from exc
    dtype = model.get_input_embeddings().weight.dtype
    for name, param in model.named_parameters():
        if is_adapter(name):
            param.data = param.data.to(dtype)
    return model.train()


def _config(asked: Lora, **more: Any) -> Any:
    import peft

    return peft.LoraConfig(
        r=asked.rank,
        lora_alpha=asked.alpha or 2 * asked.rank,
        lora_dropout=asked.dropout,
        target_modules=list(asked.targets),
        **more,
    )


def is_adapter(name: str) -> bool:
    """Whether a parameter is one of an adapter."""
    return f".{NAME}." in f"{name}." and ".lora_" in name


def base(parts: Parts) -> Parts:
    """The parts without adapters, under the names that they have in a model directory."""
    blocks = tuple(
        dataclasses.replace(
            block,
            params=tuple(
                dataclasses.replace(param, name=param.name.replace(_BASE, "."))
                for param in block.params
                if not is_adapter(param.name)
            ),
        )
        for block in parts.blocks
    )
    return dataclasses.replace(parts, blocks=blocks)


Values = Iterable[tuple[str, torch.Tensor]]


def first_values(
    parts: Parts, values: Values, seed: int, blocks: Sequence[Block] = ()
) -> Iterator[tuple[str, torch.Tensor]]:
    """Block after block: `values` of the base, which come in its order, and first ones of adapters, as peft draws them.

    A is uniform as `nn.Linear` is made, B is zero (of an embedding A is zero and B normal), so training begins with the
    base as it is. They depend on the seed and the name, not on how blocks are made.
    """
    coming = iter(values)
    for block in blocks or parts.blocks:
        for param in block.params:
            if not is_adapter(param.name):
                _, value = next(coming)
            else:
                value = torch.zeros(param.shape)
                generator = torch.Generator().manual_seed(stream(seed, param.name))
                if ".lora_A." in param.name:
                    nn.init.kaiming_uniform_(value, a=math.sqrt(5), generator=generator)
                elif ".lora_embedding_B." in param.name:
                    nn.init.normal_(value, generator=generator)
            yield param.name, value


def export(values: Iterable[tuple[int, Mapping[str, torch.Tensor]]], folder: Path, asked: Lora, origin: Path) -> Path:
    """Write `adapter_config.json` and `adapter_model.safetensors`, which `PeftModel.from_pretrained` reads."""
    adapters = {
        f"base_model.model.{name}.".replace(f".{NAME}.", ".").rstrip("."): value.contiguous()
        for _, block in values
        for name, value in block.items()
        if is_adapter(name)
    }
    name = "adapter_model.safetensors"
    with replacing(folder, last=name) as coming:
        save(adapters, coming / name)
        _config(asked, task_type="CAUSAL_LM", base_model_name_or_path=str(origin), inference_mode=True).save_pretrained(
            coming
        )
    return folder / name
