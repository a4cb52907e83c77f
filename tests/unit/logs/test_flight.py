"""Dumps of flight recorders: who is missing in which collective; files that would do more than hold values."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.logs.diagnose.flight import decode, read_dumps
from fairlead.logs.diagnose.hang import from_dumps
from fairlead.logs.diagnose.model import Rank
from support.depth import cases

RANKS = 8


def entry(seq: int, state: str = "completed", name: str = "nccl:all_reduce") -> dict:
    """As torch/distributed/flight_recorder/components/types.py reads it."""
    return {
        "record_id": seq, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": seq, "p2p_seq_id": 0,
        "op_id": seq, "profiling_name": name, "time_created_ns": 10**18 + seq, "input_sizes": [[3, 4]],
        "input_dtypes": ["Float"], "output_sizes": [[3, 4]], "output_dtypes": ["Float"], "state": state,
        "time_discovered_started_ns": None, "time_discovered_completed_ns": None, "retired": state == "completed",
        "timeout_ms": 600000, "is_p2p": False, "frames": [{"name": "train", "filename": "train.py", "line": 3}],
    }  # fmt: skip


def dump(entries: list[dict], ranks: range = range(RANKS)) -> dict:
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(ranks))}}
    return {"version": "2.9", "pg_config": config, "entries": entries}


def write(folder: Path, dumps: dict[int, dict], *, as_json: bool = False) -> tuple[Rank, ...]:
    for rank, one in dumps.items():
        if as_json:
            (folder / f"4711_{rank}.json").write_text(json.dumps(one))
        else:
            (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(one))
    found, problems = read_dumps(folder, 4711)
    assert not problems
    return found


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("missing", [(5,), (2, 3)])
def test_the_rank_that_never_came_is_named(tmp_path: Path, missing: tuple[int, ...], as_json: bool) -> None:
    dumps = {
        rank: dump([entry(n) for n in range(10, 20)] + ([] if rank in missing else [entry(20, "scheduled")]))
        for rank in range(RANKS)
    }
    found = from_dumps(write(tmp_path, dumps, as_json=as_json))
    assert found is not None
    assert found.ranks == missing
    assert "all_reduce number 20" in found.says
    assert found.firm


def test_the_rank_that_called_something_else_is_named(tmp_path: Path) -> None:
    dumps = {
        rank: dump([entry(9), entry(10, "started", "nccl:broadcast" if rank == 6 else "nccl:all_reduce")])
        for rank in range(RANKS)
    }
    found = from_dumps(write(tmp_path, dumps))
    assert found is not None
    assert found.ranks == (6,)


def test_a_rank_without_a_dump_is_named_where_others_wait(tmp_path: Path) -> None:
    dumps = {rank: dump([entry(9), entry(10, "started")]) for rank in range(RANKS) if rank != 1}
    found = from_dumps(write(tmp_path, dumps))
    assert found is not None
    assert (found.ranks, found.firm) == ((1,), False)


def test_nobody_is_named_where_all_are_in_one_place_or_all_is_done(tmp_path: Path) -> None:
    same = {rank: dump([entry(9), entry(10, "started")]) for rank in range(RANKS)}
    assert from_dumps(write(tmp_path, same)) is None
    done = {rank: dump([entry(n) for n in range(rank % 2, 10 + rank % 2)]) for rank in range(RANKS)}
    assert from_dumps(write(tmp_path, done)) is None


def test_two_groups_are_told_apart_though_they_have_other_names_on_other_ranks(tmp_path: Path) -> None:
    dumps = {}
    for rank in range(4):
        half = range(2) if rank < 2 else range(2, 4)
        entries = [entry(1) | {"process_group": ("7", "dp")}]
        if rank != 3:
            entries.append(entry(2, "started") | {"process_group": ("7", "dp")})
        config = {"7": {"name": "7", "desc": "dp", "ranks": str(list(half))}}
        dumps[rank] = {"version": "2.9", "pg_config": config, "entries": entries}
    found = from_dumps(write(tmp_path, dumps))
    assert found is not None
    assert found.ranks == (3,)


class Evil:
    def __reduce__(self):
        return (os.system, ("touch /tmp/fairlead-was-here",))


@pytest.mark.parametrize("data", [
    pickle.dumps(Evil()), pickle.dumps({"entries": [Evil()], "pg_config": {}}),
    pickle.dumps(Path("x")), b"", b"\x80\x05", b"{",
    b"{" * 100_000, pickle.dumps([1]), pickle.dumps({"entries": 3, "pg_config": {}}), b"cos\nsystem\n(S'true'\ntR.",
    b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f.",
])  # fmt: skip
def test_what_is_no_dump_is_refused_and_nothing_runs(data: bytes, tmp_path: Path) -> None:
    with pytest.raises(ValueError):
        decode(data, 0)
    (tmp_path / "4711_0.pickle").write_bytes(data)
    found, problems = read_dumps(tmp_path, 4711)
    assert found == ()
    assert len(problems) == 1
    assert not Path("/tmp/fairlead-was-here").exists()


@settings(max_examples=cases(100), deadline=None)
@given(st.binary(max_size=400))
def test_any_bytes_are_a_dump_or_a_value_error(data: bytes) -> None:
    for head in (b"", b"\x80\x04", b"{"):
        try:
            decode(head + data, 0)
        except ValueError:
            continue


@pytest.mark.parametrize("where", ["ranks", "desc", "name", "entry"])
def test_a_pickle_in_which_one_value_stands_everywhere_costs_what_it_is_long(where):
    """A list of 4,000 ranks in each of 4,000 groups is 100 kB as a pickle, and 16 million numbers when read."""
    many = 4_000
    long = {"ranks": list(range(many)), "desc": "d" * many, "name": "n" * many}
    groups = {
        str(n): {"ranks": "[0]", "desc": "", **({where: long[where]} if where in long else {})} for n in range(many)
    }
    one = {**entry(1), **({str(n): n for n in range(many)} if where == "entry" else {})}
    if where == "name":
        groups, one = {}, {**one, "profiling_name": long["name"], "process_group": (long["name"], "")}
    data = pickle.dumps({"entries": [one] * (many if where in {"entry", "name"} else 1), "pg_config": groups})
    with pytest.raises(ValueError, match="more than the file holds"):
        decode(data, 0)


@pytest.mark.parametrize("op", [b"r\xff\xff\xff\x7f", b"p2147483647\n", b"p" + b"9" * 5000 + b"\n"])
def test_a_pickle_that_keeps_a_value_far_away_is_none(op: bytes) -> None:
    """The reader of the standard library makes room for 2^31 values, and clears it: 32 GiB for five bytes."""
    with pytest.raises(ValueError, match="more memory"):
        decode(b"\x80\x02}" + op + b".", 0)
