"""Reading a machine that is broken, hostile or half captured: every trouble is a hole with its reason."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from fairlead.probe import split_capture, write_tree
from fairlead.probe.readers.tree import Absent, Hole, Tree, fact_path, key_values, number, safe_name, slug
from fairlead.records import facts as records
from support import trees
from support.judging import small


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "sys").mkdir()
    return tmp_path


def why(tree: Tree, path: str) -> str:
    with pytest.raises(Hole) as caught:
        tree.read(path)
    assert caught.value.source == path
    return caught.value.why


def test_a_file_is_its_text(root: Path) -> None:
    (root / "sys/rate").write_text("400 Gb/sec (4X NDR)\n")
    tree = Tree(str(root))
    assert tree.read("/sys/rate") == "400 Gb/sec (4X NDR)\n"
    assert tree.attr("/sys/rate") == "400 Gb/sec (4X NDR)"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\xff\xfe400", "holds bytes that are not text"),
        (b"400\x00\x07", "holds bytes that are not text"),
        (b"", "is empty"),
        (b"\n", "is empty"),
        (b"x" * 5000, "is larger than 4096 bytes"),
    ],
)
def test_junk_in_a_one_value_file_is_a_hole(root: Path, data: bytes, reason: str) -> None:
    (root / "sys/rate").write_bytes(data)
    assert Tree(str(root)).attr("/sys/rate") == {"unread": reason, "source": "/sys/rate"}


def test_a_name_that_is_no_text_is_shown_as_escapes(root: Path) -> None:
    Path(root, "sys/names", os.fsdecode(b"mlx5_\xff")).mkdir(parents=True)
    assert [safe_name(name) for name in Tree(str(root)).names("/sys/names")] == ["mlx5_\\xff"]


def test_a_number_that_is_none(root: Path) -> None:
    (root / "sys/numa_node").write_text("N/A (no PMA)\n")
    tree = Tree(str(root))
    assert tree.number("/sys/numa_node") == {"unread": "is not a number: N/A (no PMA)", "source": "/sys/numa_node"}
    assert number("0x1a", base=0) == 26
    assert number("-1") == -1


def test_what_is_not_in_a_capture_was_not_looked_at(root: Path) -> None:
    tree = Tree(str(root))
    assert why(tree, "/sys/gone") == "the captured tree does not hold it"
    assert tree.attr("/sys/gone")["unread"] == "the captured tree does not hold it"
    with pytest.raises(Hole):
        tree.optional("/sys/gone")


def test_what_a_capture_says_was_absent_is_absent(root: Path) -> None:
    (root / "absent").write_text("/sys/gone\nnvidia-smi\n")
    tree = Tree(str(root))
    assert tree.optional("/sys/gone") is None
    assert tree.optional_names("/sys/gone") == []
    with pytest.raises(Absent):
        tree.run(["nvidia-smi", "-q", "-x"], 1.0)


def test_on_a_live_machine_a_missing_file_is_absent() -> None:
    tree = Tree()
    with pytest.raises(Absent):
        tree.read("/proc/no-such-file-of-fairlead")
    with pytest.raises(Absent):
        tree.run(["no-such-command-of-fairlead"], 1.0)


def test_below_an_empty_mount_point_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container without /sys says nothing about hardware."""
    monkeypatch.setattr("fairlead.probe.readers.tree.MOUNTED", ("/no-such-top-of-fairlead",))
    with pytest.raises(Hole) as caught:
        Tree().read("/no-such-top-of-fairlead/class/infiniband")
    assert not isinstance(caught.value, Absent)
    assert caught.value.why == "nothing is mounted at /no-such-top-of-fairlead"


def test_links_lead_nowhere_but_into_the_tree(root: Path) -> None:
    """An absolute link, and one that climbs out, must not read this machine in place of the captured one."""
    (root / "sys/real").mkdir()
    (root / "sys/real/value").write_text("captured\n")
    (root / "sys/absolute").symlink_to("/sys/real")
    (root / "sys/climbs").symlink_to("../../../../../../../../../../sys/real")
    (root / "sys/outside").symlink_to("/etc")
    tree = Tree(str(root))
    assert tree.read("/sys/absolute/value") == "captured\n"
    assert tree.read("/sys/climbs/value") == "captured\n"
    assert why(tree, "/sys/outside/hostname") == "the captured tree does not hold it"
    assert tree.link("/sys/absolute") == "/sys/real"


def test_links_that_go_in_circles(root: Path) -> None:
    (root / "sys/a").symlink_to("b")
    (root / "sys/b").symlink_to("a")
    assert why(Tree(str(root)), "/sys/a/value") == "too many levels of symbolic links"


def test_a_pipe_in_place_of_a_file_does_not_hang(root: Path) -> None:
    os.mkfifo(root / "sys/fifo")
    assert Tree(str(root)).attr("/sys/fifo") == {"unread": "is empty", "source": "/sys/fifo"}


def test_a_directory_in_place_of_a_file(root: Path) -> None:
    (root / "sys/rate").mkdir()
    assert why(Tree(str(root)), "/sys/rate") == "is a directory"


def test_a_file_name_that_is_no_text(root: Path) -> None:
    Path(os.fsdecode(os.fsencode(root) + b"/sys/mlx5_\xff")).mkdir()
    tree = Tree(str(root))
    assert tree.names("/sys") == [os.fsdecode(b"mlx5_\xff")]


def test_a_command_that_failed(root: Path) -> None:
    (root / "cmd").mkdir()
    (root / "cmd" / slug(["nvidia-smi", "-q", "-x"])).write_text(
        "Unable to determine the device handle for GPU 0001:00:00.0: GPU is lost\n"
    )
    (root / "cmd" / (slug(["nvidia-smi", "-q", "-x"]) + ".rc")).write_text("15")
    with pytest.raises(Hole) as caught:
        Tree(str(root)).run(["nvidia-smi", "-q", "-x"], 1.0)
    assert caught.value.why == "exit status 15: Unable to determine the device handle for GPU 0001:00:00.0: GPU is lost"
    assert caught.value.source == "nvidia-smi -q -x"


def test_file_names_of_commands() -> None:
    assert slug(["stat", "-f", "/mnt/x"]) == "stat_-f_%2Fmnt%2Fx"
    long_one, other = slug(["x" * 300]), slug(["x" * 299 + "y"])
    assert len(long_one) < 180
    assert long_one != other


def test_fact_paths_are_written_alike_on_both_sides() -> None:
    for keys in (
        ("ib", "devices", "mlx5_0"),
        ("pci", "devices", "0101:00:00.0", "class"),
        ("a", ""),
        ("0001:00:00.0",),
    ):
        assert fact_path(*keys) == records.fact_path(keys)


def test_key_values() -> None:
    assert key_values("A: 1\nB:\t 2 : 3\nno separator\n: nothing\n", ":") == {"A": "1", "B": "2 : 3"}


def test_links_that_became_small_files_are_followed(tmp_path: Path) -> None:
    """A tree that went through git or an archive without symbolic links: the same facts as with them."""
    m = small()
    whole, flat = m.write(tmp_path / "whole"), m.write(tmp_path / "flat")
    num = 0
    for folder, names, files in os.walk(flat):
        for name in [*names, *files]:
            path = Path(folder, name)
            if path.is_symlink() and str(path.readlink()).startswith("../"):
                target = str(path.readlink())
                path.unlink()
                path.write_text(target)
                num += 1
    assert num > 10
    assert trees.read_root(flat).facts == trees.read_root(whole).facts


def test_a_file_that_only_looks_like_a_link_leads_nowhere_outside(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    root = tmp_path / "tree"
    (root / "sys").mkdir(parents=True)
    (root / "sys" / "a").write_text("../../../../secret")
    with pytest.raises(Hole):
        Tree(str(root)).read("/sys/a")


def test_what_was_refused_stays_refused_in_the_capture(tmp_path: Path) -> None:
    m = small()
    m.remove("/dev/kmsg")
    m.put("/refused", "/dev/kmsg\toperation not permitted\n")
    document, kept = split_capture(json.dumps(trees.run_program(m.write(tmp_path / "one"), "--capture")))
    write_tree(kept, tmp_path / "two")
    again = trees.run_program(tmp_path / "two")["facts"]["kernel_log"]
    assert again == json.loads(document)["facts"]["kernel_log"]
    assert (again["unread"], "group adm" in again["needs"]) == ("operation not permitted", True)


def test_five_runs_of_one_tree_give_one_document(tmp_path: Path) -> None:
    """Whichever reader answers first: runs can be compared byte for byte."""
    root = trees.nd_h100_v5().write(tmp_path / "tree")
    assert len({json.dumps(trees.run_program(root)) for _ in range(5)}) == 1


@pytest.mark.parametrize("path", [None, "", ":/usr/bin", "."])
def test_no_command_is_taken_from_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str | None
) -> None:
    planted = tmp_path / "nvidia-smi-planted"
    planted.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    planted.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PATH") if path is None else monkeypatch.setenv("PATH", path)
    with pytest.raises(Absent, match="no such command"):
        Tree().run(["nvidia-smi-planted"], 5.0)
    assert not (tmp_path / "ran").exists()
