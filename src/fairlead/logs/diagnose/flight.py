"""Dumps of PyTorch's flight recorder, one file a rank, as pickle or as JSON.

The form is that of torch/distributed/flight_recorder/components/types.py: `entries` with `process_group` (name,
description), `collective_seq_id`, `profiling_name` and `state`, and `pg_config` with the ranks of each group. A pickle
may build plain values alone: whatever names a class or a function is refused, as any program on a node may have written
the file.
"""

from __future__ import annotations

import io
import json
import pickle
import pickletools
import re
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from fairlead.base.trust import read_file
from fairlead.errors import UsageError
from fairlead.logs.diagnose.model import Rank

MAX_BYTES = 256 << 20
MAX_RANKS = 100_000
_NUMBER = re.compile(r"(\d{1,6})(?:\.(?:json|pickle|pkl))?\Z")
_UNREAD = frozenset({"frames", "input_sizes", "output_sizes", "input_dtypes", "output_dtypes", "input_strides"})
"""Long parts of an entry that nothing here looks at."""
_RANKS = re.compile(r"\d+")


class _Plain(pickle.Unpickler):
    """Plain values, and nothing that has a name."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise pickle.UnpicklingError("it asks for an object of somebody else")


_PLACES = (pickle.LONG_BINPUT[0], pickle.PUT[0])
_LENGTHS = {pickletools.TAKEN_FROM_ARGUMENT1: 1, pickletools.TAKEN_FROM_ARGUMENT4: 4,
            pickletools.TAKEN_FROM_ARGUMENT4U: 4, pickletools.TAKEN_FROM_ARGUMENT8U: 8}  # fmt: skip
_ARGUMENTS = {ord(op.code): op.arg.n if op.arg else 0 for op in pickletools.opcodes}
"""Opcode -> bytes behind it, or how their number is said."""


def _far_places(data: bytes) -> bool:
    """Whether a pickle keeps a value at a place far behind all others: the reader would make room for every one before
    it, 32 GiB for five bytes. Goes from opcode to opcode; what is none is left to the reader.
    """
    at, end = 0, len(data)
    while at < end:
        op, at = data[at], at + 1
        num = _ARGUMENTS.get(op)
        if num is None or op == pickle.STOP[0]:
            return False
        if num == pickletools.UP_TO_NEWLINE:
            behind = data.find(b"\n", at) + 1
            if op == pickle.PUT[0] and not (data[at : behind - 1].isdigit() and behind - at < 11):
                return True
            if op in _PLACES and int(data[at : behind - 1]) > end:
                return True
            if not behind:
                return False
            at = behind
        elif num < 0:
            size = _LENGTHS[num]
            at += size + int.from_bytes(data[at : at + size], "little")
        else:
            if op in _PLACES and int.from_bytes(data[at : at + 4], "little") > end:
                return True
            at += num
    return False


class _Entry(msgspec.Struct):
    process_group: tuple[str, str]
    collective_seq_id: int
    profiling_name: str
    state: str
    is_p2p: bool = False


class _Config(msgspec.Struct):
    ranks: str | list[int]
    desc: str = ""


class _Dump(msgspec.Struct):
    entries: list[_Entry]
    pg_config: dict[str, _Config]


def decode(data: bytes, rank: int) -> Rank:
    """A dump of one rank. Raises ValueError where it is none."""
    if data[:1] == b"{":
        try:
            found: Any = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"no JSON: {error}") from None
    elif _far_places(data):
        raise ValueError("no pickle of plain values: it asks for more memory than it can need")
    else:
        try:
            found = _Plain(io.BytesIO(data)).load()
        except MemoryError:
            raise ValueError("it asks for more memory than there is") from None
        except Exception as error:  # noqa: BLE001 - a broken pickle raises whatever its bytes make it raise
            raise ValueError(f"no pickle of plain values: {error}") from None
    if _stands_for_more(found, 4 * len(data) + (1 << 20)):
        raise ValueError("its values stand for more than the file holds")
    try:
        dump = msgspec.convert(found, _Dump, strict=False)
    except (msgspec.ValidationError, RecursionError) as error:
        raise ValueError(str(error)) from None
    names: dict[str, str] = {}
    members: dict[str, tuple[int, ...]] = {}
    for name, config in dump.pg_config.items():
        said = config.ranks if isinstance(config.ranks, list) else [int(n[:9]) for n in _RANKS.findall(config.ranks)]
        ranks = tuple(sorted(set(said[:MAX_RANKS])))
        # the same group has other names on other ranks; its members are the same everywhere
        shown = config.desc if config.desc and config.desc != "undefined" else name
        names[name] = f"{shown} of {len(ranks)}: {ranks[0]}-{ranks[-1]}" if ranks else shown
        members[names[name]] = ranks
    groups: dict[str, dict[int, str]] = {}
    for entry in dump.entries:
        if not entry.is_p2p:
            group = names.get(entry.process_group[0], entry.process_group[0])
            text = f"{entry.profiling_name.removeprefix('nccl:')[:60]} {entry.state[:20]}"
            groups.setdefault(group, {})[entry.collective_seq_id] = text
    return Rank(rank, groups, members)


def _stands_for_more(found: Any, most: int) -> bool:
    """Whether more is there to read than `most`: in a pickle, one value may stand in a hundred thousand places."""
    total, rest = 0, [(found, 4)]
    while rest and total <= most:
        value, depth = rest.pop()
        if isinstance(value, dict | list | tuple | str | bytes):
            total += len(value)
            if isinstance(value, dict) and depth and total <= most:
                rest += [(each, depth - 1) for key, each in value.items() if key not in _UNREAD]
            elif isinstance(value, list | tuple) and depth and total <= most:
                rest += [(each, depth - 1) for each in value if not isinstance(each, int | float)]
    return total > most


def read_dumps(folder: Path, job: int) -> tuple[tuple[Rank, ...], list[str]]:
    """All dumps of a folder, and which files are none. The last number of a name is the rank."""
    if not folder.is_dir():
        raise UsageError("cli/usage", f"{folder} is no folder", hint="--dumps FOLDER with one file a rank")
    found: dict[int, Rank] = {}
    problems: list[str] = []
    for path in sorted(folder.iterdir()):
        number = _NUMBER.search(path.name)
        mine = re.match(r"(\d+)_", path.name)
        if number is None or not path.is_file() or (mine is not None and int(mine[1]) != job):
            continue
        try:
            found[int(number[1])] = decode(read_file(path, MAX_BYTES, follow=False), int(number[1]))
        except (OSError, ValueError) as error:
            problems.append(f"{path.name}: {error}")
    return tuple(found[rank] for rank in sorted(found)), problems
