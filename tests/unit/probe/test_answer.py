"""What comes back from a node: a record, a sentence why not, or a captured tree that reads the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fairlead.errors import ClusterError, UsageError
from fairlead.probe import local, parse, split_capture, write_tree
from fairlead.probe.readers.imds import COMPUTE, EVENTS, KEPT
from support import trees
from support.judging import facts_of, small


def test_parse_names_the_node() -> None:
    record = parse('{"schema": "fairlead.facts/1", "taken_at_ns": 7, "facts": {"a": 1}}', "n7")
    assert (record.node, record.taken_at_ns, record.facts) == ("n7", 7, {"a": 1})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "{",
        '{"schema": "fairlead.facts/1", "facts": {"host": {"os": ',
        "Welcome to the cluster!\n{}",
        '{"facts": 7}',
        '{"schema": "fairlead.facts/2"}',
        '{"taken_at_ns": "yesterday"}',
        b"\xff\xfe{}",
    ],
)
def test_half_a_document_is_one_sentence(text: str | bytes) -> None:
    with pytest.raises(ClusterError) as caught:
        parse(text, "n7")
    assert caught.value.code == "probe/bad-answer"
    assert caught.value.nodes == "n7"
    assert "\n" not in caught.value.message
    assert "n7" not in caught.value.message


def test_a_place_without_a_tree(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no captured tree at"):
        local(tmp_path / "nowhere")


def test_an_answer_without_a_tree() -> None:
    with pytest.raises(ClusterError, match="carries no captured tree"):
        split_capture('{"facts": {}}')


def test_a_capture_reads_like_the_machine(tmp_path: Path) -> None:
    """Capturing a tree and reading the capture gives the same facts, junk and absences included."""
    m = small()
    m.put("/sys/class/infiniband/mlx5_ib0/ports/1/rate", b"\xff\x00")
    m.put(trees.cmd_path(["nvidia-smi", "nvlink", "-s"]) + ".rc", "3")
    original = m.write(tmp_path / "original")
    document, kept = split_capture(json.dumps(trees.run_program(original, "--capture")))
    assert write_tree(kept, tmp_path / "copy") > 100
    again = trees.run_program(tmp_path / "copy")
    before, after = json.loads(document)["facts"], again["facts"]
    for facts in (before, after):
        # of the kernel's messages, a capture holds those that are facts
        facts["kernel_log"].pop("num_read")
        facts["kernel_log"].pop("first_s")
    assert after == before


def test_a_capture_writes_nothing_outside_its_folder(tmp_path: Path) -> None:
    evil = {
        "/../../escape": "x",
        "/a/../../escape2": "x",
        "/link@": "../../outside",
        "/link/file": "x",
        "/etc/": ["../up", "ok", "."],
        "/abs@": str(tmp_path / "outside"),
        "/abs/file": "x",
        "!/gone": "",
        "/nul\0byte": "x",
        "": "x",
        "/": [],
        "/bin": {"hex": "ff00"},
        "/both@": str(tmp_path / "victim"),
        "/both": "x",
        "/up@": "../../../victim",
        "/up": "x",
        "/ring@": "/ring",
        "/ring": "x",
        "/ring/below": "x",
        "/odd@": "a\0b",
    }
    root = tmp_path / "deep" / "er" / "tree"
    root.mkdir(parents=True)
    (tmp_path / "deep/victim").write_text("untouched")
    (root / "mine").symlink_to(tmp_path / "deep/victim")  # what stands there already is followed no more
    (root / "absent").symlink_to(tmp_path / "deep/victim")
    write_tree(evil | {"/mine": "x"}, root)
    assert (tmp_path / "deep/victim").read_text() == "untouched"
    (tmp_path / "deep/victim").unlink()
    outside = [p for p in tmp_path.rglob("*") if root not in (p, *p.parents) and p not in root.parents]
    assert outside == []
    assert (root / "bin").read_bytes() == b"\xff\x00"
    assert (root / "absent").read_text() == "/gone\n"


def test_a_file_read_through_a_link_is_kept_where_the_link_leads(tmp_path: Path) -> None:
    write_tree(
        {"/etc/os-release@": "../usr/lib/os-release", "/etc/os-release": "ID=x", "/abs@": "/usr/y", "/abs": "z"},
        tmp_path,
    )
    assert (tmp_path / "usr/lib/os-release").read_text() == (tmp_path / "etc/os-release").read_text() == "ID=x"
    assert (tmp_path / "usr/y").read_text() == "z"


@pytest.mark.parametrize(
    "tree",
    [
        None,
        [],
        {"/x": 1},
        {"/x": {"hex": "zz"}},
        {"/x": {"no": "00"}},
        {"/x/": [1]},
        {"/\ud800": ""},
        {"/d/": ["\ud800"]},
    ],
)
def test_half_a_tree_is_no_tree(tree: object) -> None:
    with pytest.raises(ClusterError) as caught:
        split_capture(json.dumps({"schema": "x", "tree": tree}))
    assert caught.value.code == "probe/bad-answer"


def test_facts_of_a_record_survive_json() -> None:
    from fairlead.records.codec import from_json, to_json
    from fairlead.records.facts import NodeFacts

    record = facts_of(small())
    assert from_json(to_json(record), NodeFacts) == record


def test_a_capture_holds_of_the_environment_the_log_and_the_platform_what_facts_use(tmp_path: Path) -> None:
    m = small()
    words = "SECRET0 SECRET1 SECRET2 SECRET3 SECRET4 SECRET5 SECRET6 SECRET7"
    m.put(
        "/proc/self/environ",
        "HF_TOKEN=SECRET0\0NCCL_DEBUG=WARN\0HOME=/home/SECRET1\0NCCL_TOKEN=SECRET2\0SLURM_JWT=SECRET3\0"
        "SSH_CONNECTION=10.2.0.1 40000 10.2.0.4 22\0LS_COLORS=SECRET4\0no-name\0\0",
    )
    m.put(
        trees.cmd_path(["dmesg", "--raw"]),
        "<4>[    1.000000] NVRM: x\n<12>[    2.000000] login: SECRET5\n<6>[    3.0] b\n",
    )
    compute = {"vmId": "v", "customData": "SECRET6", "tags": "owner:SECRET7", "osProfile": {"adminUsername": words}}
    m.put(KEPT[COMPUTE], json.dumps(compute))
    m.put(
        KEPT[EVENTS],
        json.dumps({"Events": [{"EventId": "e", "EventType": "Freeze", "Extra": words}], "DocumentIncarnation": 1}),
    )
    document = trees.run_program(m.write(tmp_path / "one"), "--capture")
    assert document["facts"]["host"]["environment"] == {"NCCL_DEBUG": "WARN"}
    assert document["facts"]["net"]["reached_at"] == "10.2.0.4"
    assert document["facts"]["imds"]["compute"] == {"vmId": "v"}
    assert document["facts"]["imds"]["events"] == [{"EventId": "e", "EventType": "Freeze"}]
    assert [word for word in words.split() if word in json.dumps(document)] == []
