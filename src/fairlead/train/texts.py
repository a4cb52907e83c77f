"""Texts become tokens once, before a run: a JSONL file and the tokenizer of a model directory, into mapped arrays.

A line is `{"text": ...}`, `{"prompt": ..., "completion": ...}` or `{"messages": [{"role": ..., "content": ...}, ...]}`,
as training libraries have them. What is not to be learned (prompts, what users say, padding, the first token of a text)
has the label -100. Packed rows hold several samples, each with positions of its own, so that none sees another; a
sample with a prompt is never cut in two, and only its begin counts where it is longer than a row.

Must not know: models, steps.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from io import BufferedRandom
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from transformers import AutoTokenizer

from fairlead.base.files import disk_errors
from fairlead.base.shown import shown
from fairlead.base.trust import open_file
from fairlead.errors import TrainError
from fairlead.train.config import Config, Data
from fairlead.train.packing import IGNORED

_MAX_LINE = 64 << 20
"""Bytes; a longer line is no sample but a mistake."""
KINDS = ("input_ids", "labels", "position_ids", "attention_mask")


class Message(msgspec.Struct, frozen=True):
    """One turn of a conversation."""

    role: str
    content: str


class Line(msgspec.Struct, frozen=True):
    """One sample; other keys of a line are left alone."""

    text: str | None = None
    prompt: str | None = None
    completion: str | None = None
    messages: list[Message] | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """Tokens, and what is to be learned of them."""

    ids: list[int]
    labels: list[int]
    whole: bool
    """Not to be cut where a row ends: it has a prompt."""


def tokenized(config: Config, base: Path) -> Path:
    """The folder with the arrays of the configuration's texts; made once, and anew where anything changed."""
    data = config.data
    source, folder = base / data.text, base / (data.tokenizer or config.model.path)
    place = base / f"{config.run.store}.tokens" / _digest(source, folder, data)
    if place.exists():
        return place
    coming = place.with_suffix(".coming")
    with disk_errors(place):
        shutil.rmtree(coming, ignore_errors=True)
        coming.mkdir(parents=True, mode=0o700)
    tokenizer = _tokenizer(folder)
    rows = (
        packed(samples(source, tokenizer, data), data) if data.pack else padded(samples(source, tokenizer, data), data)
    )
    with disk_errors(place):
        num = _write(coming, rows, data)
        if not num:
            raise _unfit(source, "holds no sample with something to learn")
        coming.rename(place)
    return place


def samples(source: Path, tokenizer: Any, data: Data) -> Iterator[Sample]:
    """Line after line. Raises TrainError with the number of a line that is none."""
    decoder = msgspec.json.Decoder(Line)
    try:
        with open_file(source) as file:
            number = 0
            while raw := file.readline(_MAX_LINE + 1):
                number += 1
                if len(raw) > _MAX_LINE:
                    raise _unfit(source, f"has more than {_MAX_LINE >> 20} MiB in line {number}")
                if not raw.strip():
                    continue
                try:
                    yield _sample(decoder.decode(raw), tokenizer, data)
                except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as exc:
                    raise _unfit(source, f"line {number}: {shown(str(exc))}") from exc
    except OSError as exc:
        raise _unfit(source, f"does not read: {exc.strerror}") from exc


def _sample(line: Line, tokenizer: Any, data: Data) -> Sample:
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    if line.messages is not None:
        ids, learned = _conversation(line.messages, tokenizer)
    elif line.prompt is not None and line.completion is not None:
        before = tokenizer(line.prompt)["input_ids"]
        after = [*tokenizer(line.completion, add_special_tokens=False)["input_ids"], *end]
        ids, learned = [*before, *after], [False] * len(before) + [True] * len(after)
    elif line.text is not None:
        ids = [*tokenizer(line.text)["input_ids"], *end]
        return Sample(ids, [IGNORED, *ids[1:]], whole=False)
    else:
        raise ValueError("has neither `text`, nor `prompt` and `completion`, nor `messages`")
    if data.prompts == "learned":
        learned = [True] * len(ids)
    labels = [token if is_learned else IGNORED for token, is_learned in zip(ids, learned, strict=True)]
    return Sample(ids, [IGNORED, *labels[1:]] if labels else [], whole=True)


def _conversation(messages: list[Message], tokenizer: Any) -> tuple[list[int], list[bool]]:
    """By the tokenizer's chat template; what an assistant says is learned, behind the template's begin of its turn."""
    turns = [{"role": message.role, "content": message.content} for message in messages]

    def rendered(num: int, *, asks: bool) -> list[int]:
        given = tokenizer.apply_chat_template(turns[:num], tokenize=True, add_generation_prompt=asks, return_dict=True)
        return list(given["input_ids"])

    ids = rendered(len(turns), asks=False)
    learned = [False] * len(ids)
    for at, turn in enumerate(turns):
        if turn["role"] != "assistant":
            continue
        before, after = rendered(at, asks=True), rendered(at + 1, asks=False)
        if ids[: len(before)] != before or ids[: len(after)] != after:
            raise ValueError("the chat template changes earlier turns when later ones come, so none can be masked")
        learned[len(before) : len(after)] = [True] * (len(after) - len(before))
    return ids, learned


Row = list[Sample]
"""What shares a row."""


def packed(given: Iterator[Sample], data: Data) -> Iterator[Row]:
    """Rows filled one after another; texts go on in the next row, samples with a prompt begin a new one."""
    row: Row = []
    left = data.length
    for sample in given:
        at = 0
        if sample.whole and len(sample.ids) > left and row:
            yield row
            row, left = [], data.length
        while at < len(sample.ids):
            end = min(len(sample.ids), at + left)
            labels = sample.labels[at:end]
            row.append(Sample(sample.ids[at:end], [IGNORED, *labels[1:]], sample.whole))
            left -= end - at
            at = len(sample.ids) if sample.whole else end
            if not left:
                yield row
                row, left = [], data.length
    if row:
        yield row


def padded(given: Iterator[Sample], data: Data) -> Iterator[Row]:
    """One sample a row, cut to its length."""
    for sample in given:
        if sample.ids:
            yield [Sample(sample.ids[: data.length], sample.labels[: data.length], sample.whole)]


def _write(folder: Path, rows: Iterator[Row], data: Data) -> int:
    """The arrays of rows that have something to learn; how many there are."""
    files = {kind: (folder / f"{kind}.npy").open("w+b") for kind in KINDS}
    num = 0
    try:
        for file in files.values():
            _head(file, 0, data.length)
        for row in rows:
            if not any(label != IGNORED for sample in row for label in sample.labels):
                continue
            for kind, values in _arrays(row, data.length).items():
                files[kind].write(values.tobytes())
            num += 1
        for file in files.values():
            file.seek(0)
            _head(file, num, data.length)
    finally:
        for file in files.values():
            file.close()
    return num


def _head(file: BufferedRandom, num: int, length: int) -> None:
    """Numpy leaves room in the header of an array for its first axis to grow."""
    head = {"descr": "<i8", "fortran_order": False, "shape": (num, length)}
    np.lib.format.write_array_header_1_0(file, head)


def _arrays(row: Row, length: int) -> dict[str, np.ndarray]:
    """Each array of one row; padding is a text of its own, with nothing to learn."""
    found = {kind: np.zeros(length, np.int64) for kind in KINDS}
    found["labels"][:] = IGNORED
    at = 0
    for sample in row:
        span = slice(at, at + len(sample.ids))
        found["input_ids"][span] = sample.ids
        found["labels"][span] = sample.labels
        found["position_ids"][span] = np.arange(len(sample.ids))
        found["attention_mask"][span] = 1
        at = span.stop
    found["position_ids"][at:] = np.arange(length - at)
    return found


def _tokenizer(folder: Path) -> Any:
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, TypeError, KeyError) as exc:
        raise _unfit(folder, f"holds no tokenizer: {next(iter(str(exc).splitlines()), '')}") from exc


def _digest(source: Path, folder: Path, data: Data) -> str:
    """Of everything that decides the arrays."""
    total = hashlib.sha256(repr((data.length, data.pack, data.prompts)).encode())
    beside = [path for path in sorted(folder.glob("*")) if path.suffix in {".json", ".jinja", ".txt", ".model"}]
    for path in (source, *beside):
        try:
            with open_file(path) as file:
                total.update(f"{path.name}\0{hashlib.file_digest(file, 'sha256').hexdigest()}\0".encode())
        except OSError as exc:
            raise _unfit(path, f"does not read: {exc.strerror}") from exc
    return total.hexdigest()[:32]


def _unfit(path: Path, what: str) -> TrainError:
    hint = 'one JSON object a line: {"text": "..."}, or prompt and completion, or messages; docs/howto/train.md'
    return TrainError("train/text", f"{path} {what}", hint=hint)
