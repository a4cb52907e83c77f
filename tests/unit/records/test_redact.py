from __future__ import annotations

import io
import json
import os
import tarfile
import time

import pytest

from fairlead.records.facts import NodeFacts
from fairlead.records.finding import Finding, node
from fairlead.records.redact import Redactor, pack
from fairlead.records.runs import Run, RunFolder
from fairlead.records.verdict import Verdict

NODES = [f"h200-{i:03}" for i in range(12)]


def test_a_node_is_the_same_stand_in_everywhere_also_folded_and_in_capitals():
    redact = Redactor(nodes=NODES).text
    assert redact("h200-003 and h200-004") == "node-003 and node-004"
    assert redact("H200-003") == "node-003"
    assert redact("--exclude=h200-[003-005]") == "--exclude=node-[003-005]"
    assert redact("h200-[003,011],login") == "node-[003,011],login"
    assert redact("facts/h200-003.json") == "facts/node-003.json"
    assert redact("h200-003.internal.contoso.com:22") == "node-003:22"
    assert redact("h200-003-ib0") == "node-003-ib0"


def test_a_folded_set_hides_nodes_nobody_listed():
    redact = Redactor(nodes=["h200-000"]).text
    assert redact("h200-[000-002]") == "node-[000-002]"
    assert redact("eth[0-3] and [0-2]") == "eth[0-3] and [0-2]"


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("h200-[000-001]: up", "node-[000-001]: up"),  # as clush and pdsh print
        ("h200-[000-001]:::", "node-[000-001]:::"),
        ("root@h200-[000-001]:/tmp", "root@node-[000-001]:/tmp"),
        ("-h200-[000-001]-", "-node-[000-001]-"),
        ("...h200-[000-001]...", "...node-[000-001]..."),
        ("h200-[000-001]:h200-[000,001]", "node-[000-001]:node-[000-001]"),
        ("h200-[001-000]", "<nodes-1>"),
    ],
)
def test_a_set_among_marks_is_a_set(text, clean):
    assert Redactor(nodes=["h200-000", "h200-001"]).text(text) == clean


def test_longer_names_are_not_cut_by_shorter_ones():
    redact = Redactor(nodes=["n1", "n1-b", "n11"]).text
    assert redact("n1 n1-b n11") == "node-000 node-001 node-002"
    assert redact("sn1 n1x n12") == "sn1 n1x n12"


def test_addresses_and_ids_go_by_form_and_stay_apart():
    redact = Redactor().text
    assert redact("10.1.2.3 10.1.2.4 10.1.2.3") == "<addr-1> <addr-2> <addr-1>"
    assert redact("fcbb:bbbb:101:: fe80::1%eth0") == "<addr-3> <addr-4>%eth0"
    assert redact("00:15:5d:33:ff:01") == "<mac-1>"
    assert redact("0015:5dff:fe33:ff01 0x00155dfffe33ff01 00155dfffe33ff02") == "<guid-1> <guid-2> <guid-3>"
    assert redact("GPU-5a1b2c3d-0000-1111-2222-333344445555") == "GPU-<id-1>"
    assert redact("machine 0123456789abcdef0123456789abcdef") == "machine <id-2>"


def test_what_looks_like_an_address_and_is_none_stays():
    text = "at 21:42:07 v5.15.0 counter 1234567890123456 127.0.0.1 ::1 0.0.0.0 port mlx5_0:1"
    assert Redactor().text(text) == text


def test_secrets_in_addresses_go():
    assert Redactor().text("https://x/y?sv=1&sig=Ab%2F&se=2 token=abc") == (
        "https://x/y?sv=1&sig=<redacted>&se=2 token=<redacted>"
    )


def made(tmp_path):
    folder = RunFolder.create(tmp_path, "probe", ["fairlead", "probe", "-w", "h200-[000-001]"])
    facts = {
        "identity": {"hostname": "H200-000", "asset_tag": "7783-7084", "kvp": {"VirtualMachineName": "vm-blue"}},
        "nvidia": {"smi": {"gpus": {"0": {"serial": "1650222012345", "product_name": "NVIDIA H100"}}}},
    }
    folder.write_facts([NodeFacts(node=n, facts=facts) for n in NODES[:2]])
    folder.write("spec.toml", '[[pool]]\nnodes = "gb300-[00-03]"\n')
    folder.append("log.jsonl", {"text": "first line\nh200-001 at 10.9.8.7\tgb300-02\nvm-blue 1650222012345"})
    folder.write("out.txt", "gb300-03 said:\n\x1b[31m\xff")
    folder.write("broken.jsonl", '{"a": 1}\nh200-000 not json\n')
    found = Finding(code="x/y", verdict=Verdict.FAIL, subject=node("h200-001"), message="is bad")
    folder.finish({"verdict": "fail", "findings": [found]}, verdict="fail", exit_code=3)
    return folder


def test_a_packed_run_names_nothing_and_is_still_a_run(tmp_path):
    folder = made(tmp_path)
    run = Run(folder.path)
    raw = pack(folder.path, Redactor.for_run(run))
    whole = ""
    with tarfile.open(fileobj=io.BytesIO(raw)) as tar:
        for member in tar.getmembers():
            content = tar.extractfile(member).read().decode()
            whole += member.name + "\n" + content
        tar.extractall(tmp_path / "out", filter="data")
    for secret in ("h200", "gb300", "10.9.8.7", "7783-7084", "vm-blue", "1650222012345"):
        assert secret not in whole.lower(), secret
    again = Run(tmp_path / "out" / folder.path.name)
    (only,) = again.findings()
    by_name = {f.node for f in again.facts()}
    assert set(only.subject.nodes) < by_name, "the same stand-in in facts and findings"
    first = json.loads((again.path / "log.jsonl").read_text())
    assert f"first line\n{only.subject.nodes[0]} at <addr-1>\tnode-" in first["text"]


def test_without_a_redactor_the_pack_is_exact(tmp_path):
    folder = made(tmp_path)
    with tarfile.open(fileobj=io.BytesIO(pack(folder.path, None))) as tar:
        for member in tar.getmembers():
            assert tar.extractfile(member).read() == (tmp_path / member.name).read_bytes()


# ---- secrets, homes, and what means harm -----------------------------------------------------------------------------


def test_what_a_key_or_a_flag_says_is_secret_goes_whatever_it_looks_like():
    tree = Redactor().tree
    assert tree({"client_secret": "hunter2", "env": {"HF_TOKEN": "hunter2", "NCCL_DEBUG": "WARN"}}) == {
        "client_secret": "<redacted>",
        "env": {"HF_TOKEN": "<redacted>", "NCCL_DEBUG": "WARN"},
    }
    assert tree({"credentials": {"user": "ann", "list": ["hunter2", 5]}}) == {
        "credentials": {"user": "<redacted>", "list": ["<redacted>", 5]}
    }
    assert tree({"argv": ["exec", "--", "login", "--token", "hunter2", "-w", "n1", "--password=hunter2"]}) == {
        "argv": ["exec", "--", "login", "--token", "<redacted>", "-w", "n1", "--password=<redacted>"]
    }


def test_every_home_directory_is_somebody_and_the_same_one_again():
    redact = Redactor(words={"/home/ann": "/home/user", "ann": "user"}).text
    assert redact("/home/ann/x /home/bob.smith/y /home/eve /home/bob.smith") == (
        "/home/user/x /home/user-1/y /home/user-2 /home/user-1"
    )
    assert redact("/mnt/home/bob.smith/z /Users/Carl /home") == "/mnt/home/user-1/z /Users/user-3 /home"


def test_names_with_dots_marks_and_many_words_go_too():
    redact = Redactor(
        nodes=["n_1", "n1.rack-2", "ann@n7", "10.0.0.9"], words={"my vm (blue)": "vm", "a/b": "path"}
    ).text
    assert redact("n_1 N1.rack-2 ann@n7 10.0.0.9 n1.rack-3 My VM (blue) xa/b a/b") == (
        "node-003 node-002 node-001 node-000 n1.rack-3 vm xa/b path"
    )
    assert redact("n1.rack-2.deep.domain.example and n_1.json") == "node-002 and node-003.json"


def test_a_pack_holds_no_file_of_elsewhere(tmp_path):
    folder = made(tmp_path / "runs")
    (tmp_path / "id_rsa").write_text("precious")
    (tmp_path / "dot-ssh").mkdir()
    (tmp_path / "dot-ssh" / "id_rsa").write_text("precious")
    (folder.path / "facts" / "n9.json").symlink_to(tmp_path / "id_rsa")
    (folder.path / "more").symlink_to(tmp_path / "dot-ssh")
    os.mkfifo(folder.path / "pipe")
    for redactor in (None, Redactor()):
        with tarfile.open(fileobj=io.BytesIO(pack(folder.path, redactor))) as tar:
            found = {m.name.partition("/")[2]: tar.extractfile(m).read() for m in tar.getmembers()}
        assert not {"facts/n9.json", "more/id_rsa", "pipe"} & set(found)
        assert b"precious" not in b"".join(found.values())
        assert "result.json" in found


@pytest.mark.parametrize(
    "unit",
    [
        "a",
        "0",
        "[",
        "]",
        "[1",
        "[1,",
        "[0-9]",
        "n[0-9]",
        "n1-",
        "n1.",
        "n1",
        ":",
        "1:",
        "1.",
        "0x",
        "/home/",
        "/home/a",
        "-",
        "@",
    ],
)
def test_the_time_of_a_text_grows_with_its_length_and_no_faster(unit):
    redactor = Redactor(nodes=[f"n{i}-r{j}" for i in range(20) for j in range(50)])
    text = unit * (300_000 // len(unit))
    started = time.process_time()
    redactor.text(text)
    assert time.process_time() - started < 5.0, "with its square it would be minutes"


def test_many_names_and_many_sets_cost_no_more_than_they_are_long():
    redactor = Redactor(nodes=[f"h{i:05}" for i in range(5_000)], words={f"/disk/{i}/x": f"d{i}" for i in range(2000)})
    lines = [
        f"h{i:05} and h[{i:05}-{i + 9:05}] at 10.0.{i >> 8 & 255}.{i & 255} /disk/{i % 3000}/x" for i in range(5_000)
    ]
    started = time.process_time()
    shown = redactor.text("\n".join(lines))
    assert time.process_time() - started < 4.0
    assert "h00" not in shown


@pytest.mark.parametrize(
    "text", ["n[0-999999]", "n[0-99999999999]", "n[0-999999999999999999999]", "r[0-999]n[0-999]x[0-9]"]
)
def test_a_set_of_a_million_names_is_one_stand_in(text):
    started = time.process_time()
    assert Redactor(nodes=["n1"]).text(f"on {text} it") == "on <nodes-1> it"
    assert time.process_time() - started < 1.0


def test_a_flood_of_large_sets_is_bounded_and_a_set_that_is_said_again_is_not():
    redactor = Redactor(nodes=["n1"])
    assert redactor.text("n[1-900] " * 2000) == "node-[000-899] " * 2000
    for i in range(300):
        redactor.text(f"on n[0-19{i:03}] it")
    assert redactor.text("on n[0-19] it").startswith("on <nodes-")
    assert redactor.text("n[1-900]") == "node-[000-899]"
