"""The record of a lab: complete before anything exists, and enough to enter it by."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import msgspec
import pytest

from fairlead.base.process import start_ticks
from fairlead.cluster import enter
from fairlead.errors import LabError, MissingTool, NotPermitted
from fairlead.lab import store
from fairlead.lab.plan import describe, etc_hosts, plan
from fairlead.lab.shape import LabShape
from fairlead.lab.up import build_error
from fairlead.records.codec import from_json, to_json
from fairlead.records.labstate import LabState, Process


@pytest.fixture
def labs(tmp_path, monkeypatch):
    monkeypatch.setenv("FAIRLEAD_LABS", str(tmp_path / "labs"))
    return tmp_path / "labs"


STATE = describe(LabShape(), [Path("/cg/fairlead/lab")], is_rootless=False)


def standing(state=STATE, **changes):
    hosts = tuple(msgspec.structs.replace(h, anchor=Process(100 + h.number, 1)) for h in state.hosts)
    return msgspec.structs.replace(state, **{"phase": "up", "keeper": Process(99, 1), "hosts": hosts} | changes)


def test_the_journal_names_what_will_exist_before_it_does():
    assert STATE.phase == "building"
    assert STATE.cgroup_roots == ("/cg/fairlead/lab",)
    assert STATE.keeper is None


def test_addresses_of_a_host():
    host = STATE.host("n3")
    assert (host.t0, host.port, host.management, host.fabric) == (1, 1, "10.99.1.3", "fdfa:b71c:1001:e001::1")
    assert [(p.plane, p.interface, p.address, p.link) for p in host.ports[:2]] == [
        (0, "eth1", "fcbb:bb00:e001:1001::", "p0/n3"),
        (1, "eth2", "fcbb:bb01:e001:1001::", "p1/n3"),
    ]
    assert len(STATE.switches) == 16
    assert len(STATE.links) == 32


def test_a_record_survives_its_file(labs):
    store.write(standing())
    assert store.read("lab") == standing()
    assert from_json(to_json(STATE), LabState) == STATE
    assert store.names() == ["lab"]
    store.forget("lab")
    assert store.read("lab") is None
    assert not labs.exists()


def test_a_record_of_dead_processes_is_no_running_lab(labs):
    store.write(standing())
    with pytest.raises(LabError) as caught:
        store.running("lab")
    assert caught.value.code == "lab/not-up"


def test_a_record_that_cannot_be_read_says_so(labs):
    (labs / "lab").mkdir(parents=True)
    (labs / "lab/state.json").write_text("{")
    with pytest.raises(LabError) as caught:
        store.read("lab")
    assert caught.value.code == "lab/bad-record"
    # and it is in nobody else's way
    mine = Process(os.getpid(), start_ticks(os.getpid()))
    store.write(msgspec.structs.replace(standing(name="other"), keeper=mine))
    assert enter.standing() == ["other"]
    with pytest.raises(LabError) as caught:
        enter.running("othr")
    assert caught.value.code == "lab/not-up"
    assert "did you mean `other`" in caught.value.message
    assert '[lab] name = "other"' in caught.value.hint


def test_a_pid_that_came_to_mean_another_process_is_not_alive():
    mine = Process(os.getpid(), start_ticks(os.getpid()))
    assert store.is_alive(mine)
    assert not store.is_alive(Process(mine.pid, mine.start + 1))


def test_one_writer_at_a_time(labs):
    seen = []
    with store.locked("lab"):

        def second():
            try:
                with store.locked("lab", limit_s=0.05):
                    seen.append("in")
            except LabError as error:
                seen.append(error.code)

        thread = threading.Thread(target=second)
        thread.start()
        thread.join()
    assert seen == ["lab/busy"]
    with store.locked("lab", limit_s=0.05):
        seen.append("in")
    assert seen == ["lab/busy", "in"]


def test_names_are_fabric_addresses_on_hosts_and_management_on_the_head():
    state = describe(LabShape(slurm=True), [], is_rootless=False)
    on_host, on_head = (etc_hosts(state, state.host(n)).splitlines() for n in ("n0", "head"))
    assert "fdfa:b71c:1001:e001::1 n3" in on_host
    assert "10.99.1.3 n3" in on_head
    assert "10.99.1.3 n3-mgmt" in on_host
    assert "10.99.1.4 head" in on_host


def test_entering_joins_the_cgroups_first_and_then_every_namespace():
    state = standing()
    words = enter.into_host(state, state.host("n1"), ["a b", "$x"])
    assert words[:2] == ["sh", "-c"]
    assert words[4:] == [
        "/cg/fairlead/lab/n1",
        "--",
        "nsenter",
        "-t",
        "101",
        "-m",
        "-u",
        "-i",
        "-n",
        "-p",
        "--",
        "a b",
        "$x",
    ]


def test_entering_a_users_lab_begins_with_its_user_namespace():
    state = standing(is_rootless=True)
    assert "-U" in enter.into_host(state, state.host("n1"), ["true"])
    assert "-U" in enter.into_netns(state, "p0-t0-0", ["true"])


@pytest.mark.parametrize(
    ("step", "line", "detail", "kind", "code"),
    [
        ("unshare", "unshare(2)", "Operation not permitted", NotPermitted, "lab/not-permitted"),
        (
            "ip",
            "route replace x encap seg6local action End flavors next-csid dev sr0",
            "Error: x",
            MissingTool,
            "lab/no-srv6",
        ),
        ("tc", "qdisc replace", "RTNETLINK answers: No such file or directory", LabError, "lab/build"),
    ],
)
def test_a_refused_step_is_said_in_a_users_words(step, line, detail, kind, code):
    error = build_error(step, line, detail)
    assert isinstance(error, kind)
    assert error.code == code


def test_the_plan_is_plain_json_and_names_every_namespace(labs):
    import json

    made = json.loads(json.dumps(plan(LabShape(), STATE, [], 9)))
    assert set(made["netns"]) == {s.netns for s in STATE.switches} | {h.name for h in STATE.hosts}
    assert [h["name"] for h in made["hosts"]] == ["n0", "n1", "n2", "n3"]


def test_a_record_that_a_neighbour_could_have_written_is_not_believed(labs):
    store.write(standing(msgspec.structs.replace(STATE, name="lab")))
    assert enter.read("lab") is not None
    record = labs / "lab" / enter.RECORD
    for path, rights in ((record, 0o666), (labs / "lab", 0o777), (labs, 0o777)):
        before = path.stat().st_mode
        path.chmod(rights)
        with pytest.raises(LabError, match="everybody may write to it") as caught:
            enter.read("lab")
        assert caught.value.hint == f"ls -ld {path}"
        path.chmod(before)
    assert enter.read("lab") is not None


def test_a_lab_is_not_built_where_others_may_write(tmp_path, monkeypatch):
    monkeypatch.setenv("FAIRLEAD_LABS", str(tmp_path / "labs"))
    (tmp_path / "labs").mkdir()
    (tmp_path / "labs").chmod(0o777)
    with pytest.raises(NotPermitted) as caught, store.locked("lab"):
        pass
    assert (caught.value.code, list((tmp_path / "labs").iterdir())) == ("disk/not-ours", [])
