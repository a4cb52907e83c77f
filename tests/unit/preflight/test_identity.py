from __future__ import annotations

import json

from fairlead.preflight.slurm.identity import identity_of, save_identity
from fairlead.records.facts import NodeFacts
from fairlead.records.runs import RunFolder

HOLE = {"unread": "no such file", "source": "/etc/machine-id"}


def facts(node="n1", vm="vm-1", **identity):
    said = {"hostname": "host-1", "vm_id": vm, "machine_id": HOLE, "kvp": HOLE, **identity}
    return NodeFacts(node=node, taken_at_ns=5, facts={"host": {"identity": said}})


def folder(tmp_path, number):
    return RunFolder.create(tmp_path, "preflight", ["fairlead"], f"20261121-01000{number}-preflight-000{number}")


def test_names_and_numbers_without_the_holes():
    assert identity_of(facts()) == {"hostname": "host-1", "vm_id": "vm-1", "taken_at_ns": 5}


def test_the_physical_host_comes_from_the_hypervisor():
    kvp = {"HostName": "CLUSTER", "PhysicalHostName": "BLADE7", "PhysicalHostNameFullyQualified": "blade7.dc"}
    said = identity_of(facts(kvp=kvp))
    assert said["physical_host"] == "blade7.dc"
    assert said["kvp"] == kvp
    assert identity_of(facts(kvp={"PhysicalHostName": "BLADE7"}))["physical_host"] == "BLADE7"


def test_what_the_platform_says_is_kept():
    record = facts()
    record.facts["imds"] = {"compute": {"resourceId": "/subscriptions/x"}}
    assert identity_of(record)["imds"] == {"resourceId": "/subscriptions/x"}
    record.facts["imds"] = {"compute": HOLE}
    assert "imds" not in identity_of(record)


def test_a_record_without_a_host_part_is_no_trouble():
    assert identity_of(NodeFacts(node="n1")) == {"taken_at_ns": 0}


def test_it_is_in_the_run_folder_for_every_node(tmp_path):
    run = folder(tmp_path, 1)
    save_identity(run, ["n1", "n2"], [facts()])
    written = json.loads((run.path / "identity.json").read_text())
    assert written["n1"]["vm_id"] == "vm-1"
    assert written["n1"]["run"] == run.info.id
    assert written["n2"] == {"unread": "no run has facts of this node"}


def test_a_dead_node_is_known_from_the_newest_run_that_has_its_words(tmp_path):
    for number, vm in ((1, "old"), (2, "new")):
        folder(tmp_path, number).write_facts([facts(vm=vm)])
    torn = folder(tmp_path, 3)
    torn.write("facts/n1.json", "{")
    now = folder(tmp_path, 4)
    found = save_identity(now, ["n1"], [])
    assert found["n1"]["vm_id"] == "new"
    assert found["n1"]["run"].endswith("0002")
