from __future__ import annotations

import io
import json
import tarfile

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
