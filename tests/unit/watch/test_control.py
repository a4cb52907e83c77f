"""What the control side makes of what nodes say: types, lies, pages; the table of the cluster file; the unit."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.cli.common import spec_of_size
from fairlead.errors import SpecError
from fairlead.records.border import Breach
from fairlead.records.finding import Subject, verdict_of
from fairlead.report.text import Paint
from fairlead.spec.loader import read
from fairlead.watch.control import LOOK, VERIFIED, Look, Verified, chain_finding, findings_of
from fairlead.watch.onnode.judge import Judge
from fairlead.watch.onnode.reconcile import connections
from fairlead.watch.settings import limits, settings_for
from fairlead.watch.top import page, screen
from fairlead.watch.unit import MODES, unit_files
from support.watching import DOWN, port, qp, sample, settings

JOB = {700: {"pid": 700, "comm": "python", "uid": "1001", "user": "ann", "job": "7", "job_by": "cgroup"}}


def told(**more) -> Look:
    """What a node says whose watch saw eight ports, one of them down, and a job on another."""
    judge = Judge(settings())
    for i in range(3):
        ports = {f"mlx5_{n}/1": port(data=(i * 50_000_000_000 if n == 2 else 0)) for n in range(8)}
        if i == 2:
            ports["mlx5_5/1"] = port(state=DOWN)
        judge.step(sample(10 * i, ports, qps=[qp(dev="mlx5_2")], owners=JOB))
    now = {
        **judge.now,
        "head": [3, "a" * 64],
        "age_s": 1.0,
        "folder": "/x",
        "self": {"cpu_s": 1, "rss_bytes": 20 << 20},
    }
    return LOOK(json.dumps({**now, **more}))


def test_what_the_judge_shows_is_what_the_border_takes():
    look = told()
    assert look.ports["mlx5_2/1"].owners == ["job 7"]
    assert [f.code for f in look.findings] == ["watch/port-down"]
    findings = findings_of({"n7": look})
    assert [(f.code, str(f.subject)) for f in findings] == [
        ("watch/port-down", "n7 mlx5_5/1"), ("watch/runs", "n7"),
    ]  # fmt: skip
    assert verdict_of(findings) == "fail"


def test_no_watch_an_old_look_and_a_clock_ahead_are_unknown_and_never_a_pass():
    assert verdict_of(findings_of({"n7": Look(error="no watch has run here")})) == "unknown"
    well = msgspec.structs.replace(told(), findings=[])
    assert verdict_of(findings_of({"n7": well})) == "pass"
    for age_s in (31.0, -11.0):
        found = findings_of({"n7": msgspec.structs.replace(well, age_s=age_s)})
        assert verdict_of(found) == "unknown"


HERE, THERE = "192.0.2.1:7471", "192.0.2.2:40000"


def connected(src: str, dst: str, **owner) -> Look:
    """A node with one connection, as the kernel lists both of its ends (tests/golden/rdma_netlink.json has such)."""
    judge = Judge(settings())
    cm_ids = [{"dev": "mlx5_2", "pid": 700, "src": src, "dst": dst}, {"dev": "mlx5_2", "pid": 700, "src": src}]
    judge.step(sample(0, {}, cm_ids=cm_ids, owners={700: {"pid": 700, "comm": "python", "user": "ann", **owner}}))
    return LOOK(json.dumps({**judge.now, "head": [3, "a" * 64], "age_s": 1.0}))


@pytest.mark.parametrize(
    ("theirs", "who"),
    [
        ({"job": "7"}, ""),
        ({"job": "8"}, "job 8"),
        ({"job": "8", "user": "bea"}, ""),  # a part of the same heterogeneous job, or a job that works with it
        ({}, "ann python"),
        ({"pod": "p" * 8}, "pod pppppppp"),
    ],
)
def test_both_ends_of_a_connection_are_of_one_job(theirs: dict, who: str):
    looks = {"n1": connected(HERE, THERE, job="7", user="bea"), "n2": connected(THERE, HERE, **theirs)}
    strange = [f for f in findings_of(looks) if f.code == "watch/peer-of-another-job"]
    assert [f.message for f in strange] == ([f"job 7 on n1 is connected with {who} on n2"] if who else [])
    assert verdict_of(findings_of(looks)) == ("warn" if who else "pass")


def test_a_service_that_the_list_names_is_no_stranger():
    owners = {9: {"pid": 9, "comm": "beegfs-storage", "user": "root"}, 7: {"pid": 7, "comm": "sh", "user": "ann"}}
    both = [{"dev": "mlx5_2", "pid": pid, "src": HERE, "dst": THERE} for pid in owners]
    assert [c["who"] for c in connections(both, owners, [])] == ["root beegfs-storage", "ann sh"]
    assert [c["who"] for c in connections(both, owners, ["slurm", "comm:beegfs-storage"])] == ["ann sh"]


def test_an_end_that_nobody_saw_is_not_judged():
    """A node that is not watched, an old look, storage of the kernel's: none of them accuses a job."""
    ours, theirs = connected(HERE, THERE, job="7"), connected(THERE, HERE, job="8")
    kernels = Judge(settings())
    kernels.step(sample(0, {}, cm_ids=[{"dev": "mlx5_2", "kern": "nvme_rdma", "src": THERE, "dst": HERE}]))
    storage = LOOK(json.dumps({**kernels.now, "head": [3, "a" * 64], "age_s": 1.0}))
    for others in ({}, {"n2": msgspec.structs.replace(theirs, age_s=99.0)}, {"n2": storage}):
        assert "watch/peer-of-another-job" not in {f.code for f in findings_of({"n1": ours, **others})}


LIES = [
    {"ports": {"x" * 200: {}}},
    {"ports": {f"p{i}": {} for i in range(300)}},
    {"ports": {"mlx5_0/1": {"rx_bps": -1}}},
    {"ports": {"mlx5_0/1": {"rx_bps": "fast"}}},
    {"ports": {"mlx5_0/1": {"owners": ["x"] * 100}}},
    {"findings": [{"code": "preflight/slow-node", "verdict": "fail", "part": "x", "message": "m"}]},
    {"findings": [{"code": "watch/port-down", "verdict": "pass", "part": "x", "message": "m"}]},
    {"findings": [{"code": "watch/port-down", "verdict": "fail", "part": "x", "message": "m" * 5000}]},
    {"findings": [{"code": "watch/port-down", "verdict": "fail", "part": "x", "message": "m", "data": {"a": [1]}}]},
    {"head": [1, "zz"]},
    {"t": -1},
]


@pytest.mark.parametrize("lie", LIES)
def test_a_node_that_lies_about_types_or_sizes_is_a_breach(lie):
    with pytest.raises(Breach):
        told(**lie)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_look_or_a_breach(data):
    for border in (LOOK, VERIFIED):
        with contextlib.suppress(Breach):
            border(data)


def test_a_page_shows_ports_talkers_and_findings_and_folds_what_is_idle():
    looks = {f"n{i:02}": told() for i in range(16)}
    looks["n16"] = Look(error="no watch has run here")
    text = page(looks, Paint())
    assert "16 nodes of 17" in text
    assert re.search(r"^job 7 +n\[00-15\] ", text, re.MULTILINE)
    assert re.search(r"^n\[00-15\] +mlx5_0/1 +ACTIVE ", text, re.MULTILINE), "sixteen idle ports are one line"
    assert "verdict  fail" in text
    small = screen(looks, Paint(), rows=20, columns=60, clock="12:00:00").split("\n")
    assert len(small) == 19
    assert all(len(line) <= 60 for line in small)


def test_a_process_that_calls_itself_an_escape_moves_no_cursor():
    evil = "\x1b[2J\x1b]0;owned\x07\n\u202e"
    look = told(talkers=[{"who": evil, "ports": [evil], "alone_bps": 1.0, "shared_bps": 0.0}])
    ports = {"mlx5_0/1": {"state": evil, "rate": evil, "rx_bps": 5.0, "owners": [evil]}}
    text = page({"n0": msgspec.structs.replace(look, ports=told(ports=ports).ports)}, Paint())
    assert all(line.isprintable() for line in text.split("\n"))


def test_a_broken_chain_is_a_fault_an_empty_one_unknown():
    where = Subject(kind="node", nodes=("n0",))
    broken = VERIFIED(json.dumps({"num": 4, "broken": {"file": "audit.jsonl", "line": 5, "n": 4, "why": "x"}}))
    assert chain_finding("/x", broken, where).verdict == "fail"
    assert "audit.jsonl, line 5" in chain_finding("/x", broken, where).message
    assert chain_finding("/x", Verified(), where).verdict == "unknown"
    assert chain_finding("/x", Verified(num=3, first=0, last=2), where).verdict == "pass"


FILE = """schema = 1
[[pool]]
name = "all"
size = "Standard_ND96isr_H100_v5"
nodes = "n[0-1]"
[access]
via = "local"
[watch]
"""


def spec(tmp_path, text):
    path = tmp_path / "cluster.toml"
    path.write_text(FILE + text)
    return read(path).spec


def test_the_cluster_file_changes_numbers_and_says_where_they_come_from(tmp_path):
    said = spec(tmp_path, 'period_s = 5\nallowed = ["slurm"]\nlimits = {vf_share = 0.8, symbol_error = 50}\n')
    told_ = settings_for(said)
    assert (told_["period_s"], told_["allowed"], told_["limits"]["vf_share"]) == (5.0, ["slurm"], 0.8)
    assert next(c["limit"] for c in told_["counters"] if c["counter"] == "symbol_error") == 50
    sources = {limit.name: limit.source for limit in limits(said)}
    assert sources["watch_vf_share"] == sources["watch_symbol_error"] == "the cluster file"
    assert all(limit.source and limit.code for limit in limits(said))


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("limits = {vf_shar = 1}", "watch/bad-settings"),
        ('allowed = ["slrum"]', "watch/bad-settings"),
        ('allowed = ["user:"]', "watch/bad-settings"),
        ('listen = "0.0.0.0:9464"\ntoken_file = "/etc/x"', "watch/bad-endpoint"),
        ('listen = "127.0.0.1:9464"', "watch/bad-endpoint"),
        ('textfile = "x.prom"', "watch/bad-settings"),
    ],
)
def test_what_does_not_fit_together_is_refused_by_name(tmp_path, text, code):
    with pytest.raises(SpecError) as refused:
        spec(tmp_path, text)
    assert code in {problem.code for problem in refused.value.problems}


@pytest.mark.requires("systemd")
def test_the_unit_is_one_that_systemd_accepts(tmp_path):
    files = unit_files(spec(tmp_path, 'textfile = "/var/lib/node_exporter/watch.prom"\n'))
    assert set(files) == set(MODES)
    unit = next(text for path, text in files.items() if path.endswith(".service"))
    assert "CPUQuota=" in unit
    assert "MemoryMax=" in unit
    assert "ReadWritePaths=-/var/lib/fairlead /var/lib/node_exporter\n" in unit
    place = tmp_path / "fairlead-watch.service"
    place.write_text(unit.replace('"/usr/bin/python3"', f'"{shutil.which("true")}"'))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", place], capture_output=True, text=True, timeout=60)
    ours = [line for line in done.stderr.splitlines() if "fairlead-watch" in line]
    assert (done.returncode, ours) == (0, [])
    compile(next(text for path, text in files.items() if path.endswith(".py")), "watch.py", "exec")
    assert json.loads(files["/etc/fairlead/watch.json"])["period_s"] == 10.0


def test_every_number_is_used_and_every_use_is_a_number():
    from pathlib import Path

    import fairlead.watch.onnode as parts

    text = "".join(path.read_text() for path in Path(parts.__file__).parent.glob("*.py"))
    used = set(re.findall(r'limits\["(\w+)"\]', text))
    assert used == set(settings_for(spec_of_size("other"))["limits"])
