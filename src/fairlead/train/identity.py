"""What a run is of, key by key: one that is gone on with is the same, and a refusal says which key differs.

Data are told apart by what is in their files: all of it up to 64 MiB, else the size and 256 stretches of 256 KiB,
evenly spread, the first and the last among them.

Must not know: stores.
"""

from __future__ import annotations

import hashlib
import json
import os
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import transformers
from msgspec import structs

from fairlead.base.trust import open_file
from fairlead.errors import TrainError
from fairlead.train.config import Config
from fairlead.train.data import Tokens
from fairlead.train.model import Parts

_WHOLE, _STRETCHES, _STRETCH = 1 << 26, 256, 1 << 18
_BEFORE = "before"
"""The digest by which earlier versions knew a run."""
_NO = "none"
_CONTENTS = "sha256:"
_TOLD = 4


def identity(config: Config, parts: Parts, tokens: Tokens) -> str:
    """All that must not change while a run is gone on with, as JSON."""
    shape = json.loads(parts.model.config.to_json_string())
    shape.pop("transformers_version", None)
    run, data = config.run, config.data
    said: dict[str, Any] = {
        "the model's config.json": _CONTENTS + _short(json.dumps(shape, sort_keys=True).encode()),
        "transformers": transformers.__version__,
        "parameters in fp32": _CONTENTS + _short(repr([p.name for p in parts.blocks[0].params if p.wide]).encode()),
        **{f"model.{key}": getattr(config.model, key) for key in ("compute", "parameters", "frozen")},
        **{f"run.{key}": getattr(run, key) for key in ("keep", "rows", "accumulation", "seed")},
        "run.steps": run.steps if config.optimizer.schedule != "constant" else "any",
        **{f"optimizer.{key}": value for key, value in structs.asdict(config.optimizer).items()},
        **{f"lora.{key}": value for key, value in structs.asdict(config.lora).items() if config.lora.rank},
        "memory.head_tokens": config.memory.head_tokens,
        "data.order": data.order,
        **_contents(tokens),
        _BEFORE: _before(config, parts, tokens),
    }
    return json.dumps({key: value if isinstance(value, str) else repr(value) for key, value in said.items()})


def is_same(was: str, now: str) -> bool:
    """Whether a run may be gone on with as another."""
    keys = _read(now)
    if _read(was) is None:
        return was == (now if keys is None else keys.get(_BEFORE))
    return not differences(was, now)


def differences(was: str, now: str) -> list[str]:
    """A phrase for each key that differs; empty where either is not told key by key."""
    before, after = _read(was), _read(now)
    if before is None or after is None:
        return []
    keys = dict.fromkeys(key for key in chain(before, after) if key != _BEFORE)
    pairs = [(key, before.get(key, _NO), after.get(key, _NO)) for key in keys]
    return [_phrase(key, old, new) for key, old, new in pairs if old != new]


def other_run(folder: Path, was: str = "", now: str = "") -> TrainError:
    """A state that belongs to something else."""
    found = differences(was, now)
    more = f" and {len(found) - _TOLD} more" if len(found) > _TOLD else ""
    what = f": {', '.join(found[:_TOLD])}{more}" if found else ""
    text = f"{folder} holds the state of another model or other hyper-parameters{what}"
    return TrainError(
        "train/other-run", text, hint="resume with the configuration of its beginning, or choose another store"
    )


def _phrase(key: str, old: str, new: str) -> str:
    if _NO in {old, new}:
        return f"{key} {'was not there' if old == _NO else 'is not there any more'}"
    return f"{key} has other contents" if old.startswith(_CONTENTS) else f"{key} was {old} and is {new}"


def _contents(tokens: Tokens) -> dict[str, str]:
    if tokens.made_of:
        return {"data.text and its tokenizer": _CONTENTS + tokens.made_of}
    names = {"input_ids": "tokens"}
    found = {}
    for key, array in tokens.arrays.items():
        assert isinstance(array, np.memmap)
        found[f"data.{names.get(key, key)}"] = _CONTENTS + _of_file(Path(str(array.filename)))
    return found


def _of_file(path: Path) -> str:
    found = hashlib.sha256()
    with open_file(path) as file:
        size = os.fstat(file.fileno()).st_size
        found.update(str(size).encode())
        last = max(0, size - _STRETCH)
        apart = _STRETCH if size <= _WHOLE else last // (_STRETCHES - 1)
        for begin in [*range(0, last, apart), last]:
            file.seek(begin)
            found.update(file.read(_STRETCH))
    return found.hexdigest()[:16]


def _short(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()[:16]


def _read(said: str) -> dict[str, str] | None:
    try:
        found = json.loads(said)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _before(config: Config, parts: Parts, tokens: Tokens) -> str:
    said = [
        parts.model.config.to_json_string(),
        config.model.compute,
        repr(config.groups),
        repr(config.optimizer),
        repr((config.run.keep, config.run.rows, config.run.accumulation, config.run.seed, config.data.order)),
        repr((tokens.arrays["input_ids"].shape, tokens.made_of)),
        repr(config.run.steps if config.optimizer.schedule != "constant" else None),
        *([repr(config.lora)] if config.lora.rank else []),
        *([config.model.parameters] if config.model.parameters != "fp32" else []),
        *[param.name for param in parts.blocks[0].params if param.wide],
    ]
    return hashlib.sha256("\n".join(said).encode()).hexdigest()[:32]
