"""Files of the htsim family."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from fairlead.errors import SpecError
from fairlead.fabric.sim import traffic
from fairlead.fabric.sim.htsim_files import read_matrix, read_topology
from support.sim_runs import play

LEAF_SPINE = """\
# two tiers
Nodes 32
Tiers 2
Podsize 32
Tier 0
Downlink_speed_Gbps 100
Radix_Down 8
Radix_Up 2
Downlink_Latency_ns 1000
Switch_Latency_ns 0
Oversubscribed 4

Tier 1
Downlink_speed_Gbps 200
Radix_Down 4
Downlink_Latency_ns 500
"""
FAT_TREE = """\
Nodes 8
Tiers 3
Podsize 4
Tier 0
Downlink_speed_Gbps 200
Radix_Down 2
Radix_Up 2
Downlink_Latency_ns 1000
Tier 1
Downlink_speed_Gbps 200
Radix_Down 2
Radix_Up 4
Downlink_Latency_ns 1000
Bundle 1
Tier 2
Downlink_speed_Gbps 100
Radix_Down 4
Downlink_Latency_ns 1000
Bundle 2
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "file"
    path.write_text(text)
    return path


def test_a_leaf_spine_file(tmp_path):
    shape = read_topology(write(tmp_path, LEAF_SPINE))
    assert (shape.num_tiers, shape.num_nics, shape.t0, shape.t1, shape.hosts, shape.up0) == (2, 32, 4, 2, 8, 2)
    assert [(t.rate_gbps, t.latency_ns) for t in shape.tiers] == [(100, 1000), (200, 500)]


def test_a_fat_tree_file_with_bundled_links(tmp_path):
    shape = read_topology(write(tmp_path, FAT_TREE))
    assert (shape.num_tiers, shape.num_nics, shape.pods, shape.pod_t0, shape.pod_t1, shape.cores) == (3, 8, 2, 2, 2, 4)
    assert (shape.up1, shape.bundle2, shape.core_radix) == (4, 2, 4)


@pytest.mark.parametrize(("topology", "last"), [(LEAF_SPINE, 31), (FAT_TREE, 7)])
@pytest.mark.parametrize("size_bytes", [1, 4_000, 100_000, 4_000_000])
def test_no_message_on_a_topology_file_is_quicker_than_it_would_be_alone(tmp_path, topology, last, size_bytes):
    """Links of several rates and lengths, two tiers and three, NICs next to each other and far apart."""
    write(tmp_path, topology)
    played = play(
        '[topology]\nkind = "file"\nfile = "file"\n[transport]\nkind = "uec"\n'
        f'[[traffic]]\nkind = "flow"\nnics = "0"\nto = {last}\nsize_bytes = {size_bytes}\n'
        f'[[traffic]]\nkind = "flow"\nnics = "2"\nto = 3\nsize_bytes = {size_bytes}\n',
        folder=tmp_path,
    )
    for part in played.results.parts:
        assert part.done == 1
        assert 1 - 1e-9 <= part.fct_us[0] / part.ideal_us[0] < 1.02


@pytest.mark.parametrize(
    ("change", "line", "message"),
    [
        (("Radix_Up 2", "Radix_Upp 2"), 8, "unknown word `Radix_Upp`"),
        (("Nodes 32", "Nodes many"), 2, "`many` is no number"),
        (("Podsize 32", "Podsize"), 4, "`Podsize` has no value"),
        (("Radix_Down 8", "Radix_Down 5"), 0, "does not divide"),
        (("Tiers 2", "Tiers 4"), 0, "Tiers is 4"),
        (("Downlink_Latency_ns 500\n", ""), 0, "tier 1 lacks `downlink_latency_ns`"),
    ],
)
def test_a_wrong_topology_file_is_told_by_line(tmp_path, change, line, message):
    with pytest.raises(SpecError) as refused:
        read_topology(write(tmp_path, LEAF_SPINE.replace(*change)))
    assert any(message in p.message and p.line == line for p in refused.value.problems)


def test_every_problem_of_a_file_is_told_at_once(tmp_path):
    bad = LEAF_SPINE.replace("Radix_Up 2", "Radix_Upp 2").replace("Nodes 32", "Nodes many").replace("Tier 1", "Teir 1")
    with pytest.raises(SpecError) as refused:
        read_topology(write(tmp_path, bad))
    assert {2, 8, 13} <= {p.line for p in refused.value.problems}


MATRIX = """\
Nodes 4
Connections 3
Triggers 1
0->1 id 1 start 40 size 1000 send_done_trigger 7
1->2 id 2 start 0 size 2000
0->3 id 3 trigger 7 size 3000
trigger id 7 oneshot
"""


def test_a_matrix_with_triggers(tmp_path):
    matrix = read_matrix(write(tmp_path, MATRIX))
    assert matrix.nodes == 4
    assert [(c.src, c.dst, c.size, c.start) for c in matrix.connections] == [
        (0, 1, 1000, 40),
        (1, 2, 2000, 0),
        (0, 3, 3000, None),
    ]
    work = traffic.from_matrix(matrix, traffic.PS_PER_US)
    work.check()
    assert work.edges.tolist() == [[0, 2, 0]]


def test_the_unit_of_start_is_a_choice(tmp_path):
    matrix = read_matrix(write(tmp_path, MATRIX))
    assert traffic.from_matrix(matrix, 1_000_000).start[0] == 40_000_000
    assert traffic.from_matrix(matrix, 1).start[0] == 40


@pytest.mark.parametrize(
    ("change", "line", "message"),
    [
        (("1->2", "1->9"), 5, "no pair of 4 nodes"),
        (("1->2", "1>2"), 5, "unknown word"),
        (("start 0 ", ""), 5, "either `start` or `trigger`"),
        (("size 2000", "sise 2000"), 5, "unknown word `sise`"),
        (("Connections 3", "Connections 4"), 0, "says 4, the file holds 3"),
        (("trigger 7 size", "trigger 8 size"), 6, "nothing fires trigger 8"),
        (("0->3 id 3", "2->3 id 3"), 6, "node 2 cannot know when line 4 is done"),
        (("start 0 size 2000", "start 0 size 2000 recv_done_trigger 7"), 6, "fired by 2 lines; only a barrier"),
    ],
)
def test_a_wrong_matrix_is_told_by_line(tmp_path, change, line, message):
    with pytest.raises(SpecError) as refused:
        read_matrix(write(tmp_path, MATRIX.replace(*change)))
    assert any(message in p.message and p.line == line for p in refused.value.problems)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(SpecError) as refused:
        read_matrix(tmp_path / "none.cm")
    assert refused.value.code == "sim/file"


def test_messages_of_one_connection_share_its_queue_pair(tmp_path):
    text = (
        "Nodes 3\nConnections 4\n0->1 id 1 msg start 0 size 10\n2->1 id 2 start 0 size 20\n"
        "0->1 id 1 msg 2 start 5 size 30\n0->1 id 3 start 0 size 40\n"
    )
    work = traffic.from_matrix(read_matrix(write(tmp_path, text)), 1)
    assert work.src.tolist() == [0, 2, 0]
    assert work.flow.tolist() == [0, 0, 1, 2]
    assert work.size.tolist() == [10, 30, 20, 40]


# ---- files that mean harm --------------------------------------------------------------------------------------------

HOSTILE = [
    "1e18",
    "1e308",
    "1e999",
    "inf",
    "-inf",
    "nan",
    "-1",
    "0x10",
    "1_000",
    "9" * 5000,
    "1e" + "9" * 5000,
    "1.5",
    "²",
    "٣",
]


@pytest.mark.parametrize("word", HOSTILE)
@pytest.mark.parametrize("line", [line for line in FAT_TREE.splitlines() if len(line.split()) == 2])
def test_a_number_that_no_topology_has_is_refused_with_its_line(tmp_path, word, line):
    key, _ = line.split()
    if word == "1.5" and ("latency" in key.lower() or "speed" in key.lower()):
        return
    number = FAT_TREE.splitlines().index(line) + 1
    text = FAT_TREE.replace(f"{line}\n", f"{key} {word}\n", 1)
    with pytest.raises(SpecError) as refused:
        read_topology(write(tmp_path, text))
    assert any(p.line == number for p in refused.value.problems)
    assert max(len(str(p)) for p in refused.value.problems) < 600


@pytest.mark.parametrize("word", HOSTILE)
@pytest.mark.parametrize(
    "form", ["Nodes {}", "Connections {}", "0->1 start {} size 10", "0->1 start 0 size {}", "0->{} start 0 size 10",
             "0->1 trigger {} size 10", "trigger id {} barrier count 2", "trigger id 1 barrier count {}"],
)  # fmt: skip
def test_a_number_that_no_matrix_has_is_refused(tmp_path, word, form):
    if (word == "1.5" and "start {}" in form) or (word == "1e18" and "start {}" in form):
        return
    with pytest.raises(SpecError) as refused:
        read_matrix(write(tmp_path, "Nodes 4\nConnections 1\n" + form.format(word) + "\n"))
    assert max(len(str(p)) for p in refused.value.problems) < 600


def test_a_pipe_is_not_waited_for_and_a_file_without_end_is_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe.cm")
    with (tmp_path / "large.cm").open("wb") as file:
        file.truncate(1 << 40)
    for name in ("pipe.cm", "large.cm"):
        with pytest.raises(SpecError) as refused:
            read_matrix(tmp_path / name)
        assert refused.value.code == "sim/file"


def test_many_lines_cost_no_more_than_they_are_long(tmp_path):
    num = 50_000
    wrong = "Nodes 4\n" + "what is this\n" * num
    barrier = (
        f"Nodes 4\nConnections {2 * num}\ntrigger id 1 barrier count {num}\n"
        + "0->1 start 0 size 1 send_done_trigger 1\n" * num
        + "0->2 trigger 1 size 1\n" * num
    )
    started = time.process_time()
    with pytest.raises(SpecError) as refused:
        read_matrix(write(tmp_path, wrong))
    assert len(refused.value.problems) == 100
    assert len(read_matrix(write(tmp_path, barrier)).connections) == 2 * num
    assert time.process_time() - started < 20.0
