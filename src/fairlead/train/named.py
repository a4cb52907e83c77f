"""The model that a configuration names: what can be trained, taken apart, and how much of it a token meets.

Must not know: budgets, engines, steps.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Container
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig

from fairlead.errors import TrainError
from fairlead.train import lora, packing
from fairlead.train.config import Config
from fairlead.train.cuts import WHOLE, Cut
from fairlead.train.model import Parts, skeleton, take_apart

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def model_of(config: Config, base: Path) -> Any:
    """The skeleton of the model that a configuration names."""
    folder = base / config.model.path
    try:
        found = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        _check_kind(config, found, folder)
        packing.check(config, found.model_type)
        return skeleton(found, DTYPES[config.model.compute])
    except (OSError, ValueError) as exc:
        raise TrainError(
            "train/model",
            f"{folder} is no model directory: {str(exc).splitlines()[0]}",
            hint="name a folder with a config.json of a decoder-only model of the transformers library",
        ) from exc


def _check_kind(config: Config, found: Any, folder: Path) -> None:
    """Raise TrainError where a model directory holds more than a text model, or numbers that are no weights."""
    if found.get_text_config() is not found:
        raise TrainError(
            "train/model",
            f"{folder} is a {found.model_type}, of text and more; only models of text are trained",
            hint="save its text model by itself: transformers loads it by its own class, save_pretrained writes it",
        )
    said = getattr(found, "quantization_config", None)
    if said is not None and config.model.init == "weights":
        kind = said.get("quant_method", "") if isinstance(said, dict) else getattr(said, "quant_method", "")
        raise TrainError(
            "train/model",
            f"{folder} is quantised ({kind}): its numbers are no weights that can be trained",
            hint="write it with whole weights first: load it by transformers with dequantize=True, and save_pretrained",
        )
    if said is not None:
        del found.quantization_config


def parts_of(config: Config, model: Any) -> Parts:
    """The skeleton taken apart, with the adapters that a configuration asks for."""
    parts = take_apart(lora.adapted(model, config.lora) if config.lora.rank else model, config.groups)
    names = [param.name for block in parts.blocks for param in block.params]
    for pattern in config.model.frozen:
        if not fnmatch.filter(names, pattern):
            alias = next(iter(fnmatch.filter(parts.ties, pattern)), "")
            tied = f"; {alias} is {parts.ties[alias]}" if alias else ""
            raise _idle(
                f"`{pattern}` of model.frozen names no parameter{tied}", f'name them as "{names[0]}", or with *'
            )
    if not any(block.trained for block in parts.blocks):
        raise _idle("every parameter is frozen: nothing is left to train", "freeze less by model.frozen")
    return parts


def _idle(what: str, hint: str) -> TrainError:
    return TrainError("train/frozen", what, hint=hint)


def pieces_of(config: Config, whole: Parts, cut: Cut) -> Parts:
    """The same with its layers cut, where they have too many parameters, and with embedding and head as blocks."""
    return take_apart(whole.model, config.groups, cut.most, ends=cut.ends) if cut != WHOLE else whole


def flop_per_token(parts: Parts) -> float:
    """Forward and backward without the second forward; a frozen parameter needs no gradient of its own."""
    trained = {param.name for block in parts.blocks for param in block.trainable}
    return 4.0 * active_params(parts) + 2.0 * active_params(parts, trained)


def active_params(parts: Parts, among: Container[str] | None = None) -> int:
    """Parameters that one token meets in matrix products: of experts the chosen ones, of embeddings the head alone."""
    config = parts.model.config
    num = next(
        (getattr(config, k) for k in ("num_local_experts", "num_experts", "n_routed_experts") if hasattr(config, k)), 1
    )
    chosen = getattr(config, "num_experts_per_tok", None) or num or 1
    lookup = id(parts.model.get_input_embeddings().weight)
    tied = any(name.startswith("lm_head") for name in parts.ties)
    total = 0
    for name, param in parts.model.named_parameters():
        if (id(param) == lookup and not tied) or (among is not None and name not in among):
            continue
        is_expert = ".experts" in name and "shared" not in name
        total += param.numel() * chosen // num if is_expert and num else param.numel()
    return total
