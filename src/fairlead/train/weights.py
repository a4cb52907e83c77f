"""Weights of Hugging Face checkpoints, in and out, one block in memory at a time.

The library's own conversions are used, so that files keep the names they are published with (single experts, fused
projections) whatever the classes call their parameters.

Must not know: engines, stores.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from transformers import core_model_loading as loading
from transformers.conversion_mapping import get_model_conversion_mapping

from fairlead.base.files import write_atomic
from fairlead.base.shown import shown
from fairlead.base.trust import read_file
from fairlead.errors import TrainError
from fairlead.train.exports import replacing, save
from fairlead.train.layout import Block
from fairlead.train.model import Parts

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_MAX_INDEX = 1 << 28


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


class Checkpoint:
    """The safetensors files of a model directory."""

    def __init__(self, folder: Path, model: Any) -> None:
        self.folder = folder
        self.model = model
        self.files = _files(folder)
        """Key -> file."""
        mapping = get_model_conversion_mapping(model)
        self._renamings = [entry for entry in mapping if isinstance(entry, loading.WeightRenaming)]
        self._converters = [entry for entry in mapping if isinstance(entry, loading.WeightConverter)]
        self._by_pattern = {key: converter for converter in self._converters for key in converter.source_patterns}
        self._known = model.state_dict()
        self._trained = {name for name, _ in model.named_parameters(remove_duplicate=False)}
        self.targets = {key: self._target(key) for key in sorted(self.files, key=loading.dot_natural_key)}
        """Key -> what it becomes, and the pattern of its converter."""
        self._check()

    def _check(self) -> None:
        """Raise TrainError where a module of the model has more in the files than it computes with.

        What belongs to no module with parameters, as tables of rotations or heads that are not used, is left out.
        """
        owners = {name.rpartition(".")[0] for name in self._trained}
        ignored = [re.compile(pattern) for pattern in self.model._keys_to_ignore_on_load_unexpected or ()]
        for key, (name, _) in self.targets.items():
            is_known = name in self._known or any(pattern.search(key) for pattern in ignored)
            if not is_known and name.rpartition(".")[0] in owners:
                raise _unusable(self.folder, f"holds {shown(key)}, for which {type(self.model).__name__} has no place")

    def _target(self, key: str) -> tuple[str, str | None]:
        prefix, known = self.model.base_model_prefix, self._known
        name, pattern = loading.rename_source_key(key, self._renamings, self._converters, prefix, known)
        if name not in known and key in known:
            name, pattern = loading.rename_source_key(key, [], [], prefix, known)
        return name, pattern

    def read(self, keys: Iterable[str]) -> dict[str, torch.Tensor]:
        """What these keys become, in fp32; keys that are converted together must come together."""
        conversions: dict[str, Any] = {}
        opened: dict[Path, Any] = {}
        for key in keys:
            name, pattern = self.targets[key]
            if pattern is None:
                one = conversions.setdefault(name, loading.WeightRenaming(key, name))
            else:
                one = conversions.setdefault(name, deepcopy(self._by_pattern[pattern]))
            path = self.files[key]
            try:
                if path not in opened:
                    opened[path] = safe_open(path, framework="pt")
                value = opened[path].get_tensor(key)
            except (OSError, SafetensorError) as exc:
                raise _unusable(path, f"does not read: {exc}") from exc
            if name in self._trained and (not value.is_floating_point() or value.itemsize < 2):
                raise _unusable(path, f"holds {shown(key)} as {value.dtype}: quantised numbers are no weights to train")
            one.add_tensor(name, key, pattern or key, value.float())
        found: dict[str, torch.Tensor] = {}
        for name, one in conversions.items():
            for target, value in one.convert(name, model=self.model, config=self.model.config).items():
                found[target] = value[0] if isinstance(value, list) else value
        return found

    def load_buffers(self) -> None:
        """Put what the files say of buffers into the model; before it is taken apart."""
        buffers = {name: buffer for name, buffer in self.model.named_buffers() if name in self._known}
        keys = [key for key, (name, _) in self.targets.items() if name in buffers]
        for name, value in self.read(keys).items():
            buffers[name].copy_(value)

    def values(self, parts: Parts, blocks: Sequence[Block] = ()) -> Iterator[tuple[str, torch.Tensor]]:
        """Every parameter, or those of some blocks, block after block; of files, only what these become is read.

        Raises TrainError where one is missing or has another shape.
        """
        places = {param.name: block.index for block in parts.blocks for param in block.params}
        keys: dict[int, list[str]] = defaultdict(list)
        for key, (name, _) in self.targets.items():
            real = parts.ties.get(name, name)
            if real in places:
                keys[places[real]].append(key)
        for block in blocks or parts.blocks:
            found: dict[str, torch.Tensor] = {}
            for name, value in self.read(keys[block.index]).items():
                real = parts.ties.get(name, name)
                if real in found and not torch.equal(found[real], value):
                    raise _unusable(self.folder, f"holds two weights for {real} and {name}, and config.json ties them")
                found[real] = value
            for param in block.params:
                value = found.get(param.name)
                if value is None or tuple(value.shape) != param.shape:
                    what = "is missing" if value is None else f"has shape {list(value.shape)}, not {list(param.shape)}"
                    raise _unusable(self.folder, f"does not fit: {param.name} {what}")
                yield param.name, value


def _files(folder: Path) -> dict[str, Path]:
    index = folder / _INDEX
    try:
        if index.exists() and not (folder / _SINGLE).exists():  # as transformers does
            names = msgspec.json.decode(read_file(index, _MAX_INDEX), type=_Index).weight_map
            outside = [name for name in names.values() if not name or Path(name).name != name]
            if outside:
                raise _unusable(folder, f"names weights outside of it: `{shown(outside[0])}`")
            return {key: folder / name for key, name in names.items()}
        with safe_open(folder / _SINGLE, framework="pt") as file:
            return dict.fromkeys(file.keys(), folder / _SINGLE)
    except (OSError, msgspec.DecodeError, SafetensorError) as exc:
        raise _unusable(folder, f"holds no safetensors weights: {exc}") from exc


def _unusable(path: Path, what: str) -> TrainError:
    hint = 'correct the model directory, or begin with random weights: [model] init = "random"'
    return TrainError("train/weights", f"{path} {what}", hint=hint)


Values = Iterable[tuple[int, Mapping[str, torch.Tensor]]]
"""Block after block, its parameters by name."""


def export(parts: Parts, values: Values, folder: Path, dtype: torch.dtype) -> list[Path]:
    """A model directory that `from_pretrained` reads: one file a block, with the names of published checkpoints."""
    buffers = {name: value for name, value in parts.model.state_dict().items() if value.device.type != "meta"}
    num, total = len(parts.blocks), 0
    weight_map: dict[str, str] = {}
    with replacing(folder, last=_INDEX) as coming:
        for index, block in values:
            prefix = parts.blocks[index].name + "."
            own = {name: value.to(dtype) for name, value in block.items()}
            own |= {name: value for name, value in buffers.items() if name.startswith(prefix)} if index else {}
            converted = loading.revert_weight_conversion(parts.model, own)
            tensors = {name: value.contiguous() for name, value in converted.items()}
            if not tensors:
                continue
            name = f"model-{index + 1:05}-of-{num:05}.safetensors"
            save(tensors, coming / name)
            weight_map |= dict.fromkeys(tensors, name)
            total += sum(value.nbytes for value in tensors.values())
        config = deepcopy(parts.model.config)
        config.dtype = dtype
        config.use_cache = True
        config.architectures = [type(parts.model).__name__]
        config.save_pretrained(coming)
        index_file = {"metadata": {"total_size": total}, "weight_map": weight_map}
        write_atomic(coming / _INDEX, json.dumps(index_file, indent=2) + "\n")
    return [folder / name for name in [*dict.fromkeys(weight_map.values()), _INDEX]]
