"""Each rule of the cluster file: a good file, one thing changed, and exactly the problem it must bring."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

from fairlead.errors import Problem, SpecError
from fairlead.records.codes import explanations
from fairlead.spec.loader import Loaded, read

TODAY = dt.date(2026, 11, 20)
GOOD = """\
schema = 1
[cluster]
name = "one"
[[pool]]
name = "h100"
size = "Standard_ND96isr_H100_v5"
nodes = "h100-[000-003]"
count = 4
[[pool]]
name = "login"
size = "other"
nodes = "login1"
[fabric]
link = "infiniband"
rdma = "ib"
[access]
via = "slurm"
[[waiver]]
code = "spec/count"
nodes = "h100-002"
reason = "ticket 7"
expires = 2026-11-20
[slurm]
partition = "hpc"
[[expect]]
fact = "hca_rates_gbps"
value = [400, 200]
why = "mixed cables"
pool = "h100"
"""
LAB = """\
schema = 1
[[pool]]
name = "lab"
size = "lab"
nodes = "n[0-3]"
[fabric]
planes = 2
t0 = 2
t1 = 2
[access]
via = "lab"
"""


def load(tmp_path: Path, text: str) -> Loaded:
    path = tmp_path / "c.toml"
    path.write_text(text)
    return read(path, environ={}, today=TODAY)


def problems(tmp_path: Path, text: str) -> list[Problem]:
    with pytest.raises(SpecError) as caught:
        load(tmp_path, text)
    return caught.value.problems


def changed(text: str, old: str, new: str) -> tuple[str, int]:
    """The text with one piece replaced, and the line of it."""
    assert text.count(old) == 1
    return text.replace(old, new), text[: text.index(old)].count("\n") + 1


def test_the_good_files_are_good(tmp_path: Path) -> None:
    assert load(tmp_path, GOOD).warnings == ()
    assert load(tmp_path, LAB).warnings == ()


@pytest.mark.parametrize(
    "case",
    [
        (GOOD, "schema = 1", "schema = 2", "spec/schema", "schema is 2; this fairlead reads schema 1"),
        (GOOD, 'name = "login"', 'name = "h100"', "spec/duplicate-pool", "a second pool is called `h100`"),
        (GOOD, 'nodes = "login1"', 'nodes = ""', "spec/no-nodes", "pool `login` names no nodes"),
        (GOOD, 'nodes = "login1"', 'nodes = "-v"', "nodes/syntax", None),
        (GOOD, 'nodes = "login1"', 'nodes = ".."', "nodes/syntax", None),
        (
            GOOD,
            'nodes = "login1"',
            'nodes = "h100-[002-004]"',
            "spec/node-in-two-pools",
            "h100-[002-003] (2) is also in pool `h100`",
        ),
        (GOOD, "count = 4", "count = 3", "spec/count", "count is 3, but `nodes` names 4"),
        (GOOD, "isr_H100_v5", "isr_H101_v5", "spec/unknown-size", "no VM size `Standard_ND96isr_H101_v5`"),
        (GOOD, "count = 4", "gpus = 7", "spec/size-gpus", "gpus is 7, but Standard_ND96isr_H100_v5 has 8"),
        (GOOD, "count = 4", "ports = 9", "spec/size-ports", "ports is 9, but Standard_ND96isr_H100_v5 has 8"),
        (GOOD, 'size = "other"', 'size = "lab"', "spec/lab-size", None),
        (GOOD, 'link = "infiniband"', 'link = "ethernet"', "spec/rdma-link", None),
        (GOOD, 'rdma = "ib"', 'rdma = "roce"', "spec/rdma-link", 'rdma = "roce" needs link = "ethernet"'),
        (GOOD, 'rdma = "ib"', 'rdma = "mrc"', "spec/rdma-link", 'rdma = "mrc" needs link = "ethernet"'),
        (GOOD, 'rdma = "ib"', 'rdma = "ib"\nlossless = false', "spec/lossless", None),
        (
            GOOD,
            'size = "other"',
            'size = "standard_nc24ads_a100_v4"',
            "spec/size-no-rdma",
            "pool `login`: Standard_NC24ads_A100_v4 has no RDMA",
        ),
        (GOOD, 'rdma = "ib"', 'rdma = "ib"\nplanes = 3', "spec/ports-planes", None),
        (GOOD, 'rdma = "ib"', 'rdma = "ib"\nt1 = 3', "spec/topology-half", "`t1` is given, but not `t0`"),
        (GOOD, 'code = "spec/count"', 'code = "spec/cuont"', "spec/waiver-code", None),
        (GOOD, 'nodes = "h100-002"', 'nodes = "h100-[003-005]"', "spec/waiver-nodes", "no pool has h100-[004-005] (2)"),
        (GOOD, 'nodes = "h100-002"', 'nodes = ""', "spec/waiver-nodes", "a waiver must name its nodes"),
        (GOOD, "expires = 2026-11-20", "", "spec/missing-key", "`expires` is missing in [[waiver]]"),
        (
            GOOD,
            'partition = "hpc"',
            'container = "x.sif"',
            "cluster/container-half",
            "`container` needs `container_runtime` too",
        ),
        (GOOD, 'partition = "hpc"', 'container_runtime = "pyxis"', "cluster/container-half", None),
        (GOOD, 'partition = "hpc"', "lab = true", "cluster/slurm-lab", None),
        (GOOD, 'fact = "hca_rates_gbps"', 'fact = "hca_rate"', "spec/expect-fact", "no fact `hca_rate`"),
        (GOOD, "value = [400, 200]", 'value = "fast"', "spec/wrong-type", None),
        (GOOD, "value = [400, 200]", "value = [400, true]", "spec/wrong-type", None),
        (GOOD, 'pool = "h100"', 'pool = "h10"', "spec/expect-pool", "no pool `h10`"),
        (LAB, "t0 = 2", "t0 = 3", "spec/topology-divide", None),
        (LAB, "t0 = 2", "t0 = 5000", "spec/topology-divide", None),
        (LAB, "t0 = 2", "t0 = 2\nhosts_per_t0 = 3", "spec/topology-divide", None),
        (LAB, "t1 = 2", "t1 = 5000", "spec/topology-range", None),
        (LAB, "planes = 2", "planes = 300", "spec/out-of-range", None),
        (LAB, 'nodes = "n[0-3]"', 'nodes = "n[0-3]"\nports = 3', "spec/ports-planes", None),
        (LAB, 'nodes = "n[0-3]"', 'nodes = "n[0-255],m[0-1]"', "lab/too-large", None),
        (LAB, 'nodes = "n[0-3]"', 'nodes = "10.0.0.[1-4]"', "lab/real-nodes", None),
        (LAB, 'nodes = "n[0-3]"', 'nodes = "n1.example.com,a,b,c"', "lab/real-nodes", None),
        (LAB, 'nodes = "n[0-3]"', 'nodes = "N[0-3]"', "lab/real-nodes", None),
        (
            LAB,
            'nodes = "n[0-3]"',
            'nodes = "n[0-2],mgmt"',
            "lab/reserved-name",
            "`mgmt` cannot be a lab host: the lab has one of its own",
        ),
        (LAB, 'nodes = "n[0-3]"', f'nodes = "{"n" * 33},a,b,c"', "lab/real-nodes", None),
        (LAB, "planes = 2", "planes = 9", "lab/too-large", "the lab would need 9 planes; 8 is the most"),
        (LAB, 'name = "lab"', 'name = "a_b"', "spec/bad-text", None),
        (LAB, 'name = "lab"', 'name = "a-"', "spec/bad-text", None),
        (LAB, 'via = "lab"', 'via = "ssh"', "spec/lab-size", None),
    ],
)
def test_one_change(tmp_path: Path, case: tuple[str, str, str, str, str | None]) -> None:
    base, old, new, code, message = case
    text, line = changed(base, old, new)
    (problem,) = problems(tmp_path, text)
    assert problem.code == code
    assert problem.message == (message or problem.message)
    assert problem.source
    assert code in explanations()
    where = {
        "spec/rdma-link": ("rdma",),
        "spec/size-no-rdma": ("rdma",),
        "spec/missing-key": ("[[waiver]]",),
        "spec/lab-size": ("size",),
        "spec/topology-range": ("t0", "t1"),
    }
    if code in where:
        assert problem.source.strip().startswith(where[code])
    elif "\n" in new:
        assert problem.line in (line, line + 1)
    else:
        assert problem.line == line


@pytest.mark.parametrize("table", ["[cluster]", "[lab]"])
def test_a_bad_name_is_refused_in_words_also_where_it_may_be_left_out(tmp_path: Path, table: str) -> None:
    (problem,) = problems(tmp_path, LAB + f'{table}\nname = "a-"\n')
    assert problem.message.endswith("it must be up to 32 lower-case letters, digits and dashes, no dash at an end")


def test_limits_of_the_lab_are_not_those_of_a_cluster(tmp_path: Path) -> None:
    nodes = 'nodes = "a[0-299].example.com,10.0.0.1"'
    assert len(load(tmp_path, GOOD.replace('nodes = "login1"', nodes)).spec.pools[1].nodes) == 301


def test_near_names_are_offered(tmp_path: Path) -> None:
    for spelling, near in (
        ("standard_nd96isr_h101_v5", "standard_nd96isr_h100_v5"),
        ("Standard_NC36ds_xl_RTXPro600_v6", "Standard_NC36ds_xl_RTXPro6000_v6"),
        ("Standard_NC36ds_xl_RTXPRO6000BS_v6", "Standard_NC36ds_xl_RTXPRO6000BSE_v6"),
    ):
        (problem,) = problems(tmp_path, GOOD.replace("Standard_ND96isr_H100_v5", spelling))
        assert problem.hint == f'did you mean `{near}`? (or "other")'


def test_no_pool(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, 'schema = 1\n[access]\nvia = "ssh"\n')
    assert problem.code == "spec/no-pool"


def test_waiver_for_all_nodes(tmp_path: Path) -> None:
    waiver = load(tmp_path, GOOD.replace('nodes = "h100-002"', 'nodes = "all"')).spec.waivers[0]
    assert waiver.covers("anything")
    assert not load(tmp_path, GOOD).spec.waivers[0].covers("h100-001")


def test_waiver_on_its_last_day_and_after(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(GOOD)
    assert read(path, environ={}, today=dt.date(2026, 11, 20)).warnings == ()
    loaded = read(path, environ={}, today=dt.date(2026, 11, 21))
    (warning,) = loaded.warnings
    assert (warning.code, warning.line) == ("spec/waiver-expired", 22)
    assert not loaded.spec.waivers[0].is_active(dt.date(2026, 11, 21))


@pytest.mark.parametrize(
    ("via", "table"),
    [("ssh", "[slurm]\n"), ("local", "[lab]\nmtu = 1500\n"), ("kubernetes", "[slurm]\n"), ("slurm", "[lab]\n")],
)
def test_tables_nobody_reads_are_warned_about(tmp_path: Path, via: str, table: str) -> None:
    text = f'schema = 1\n[[pool]]\nname = "a"\nsize = "other"\nnodes = "a1"\n[access]\nvia = "{via}"\n{table}'
    (warning,) = load(tmp_path, text).warnings
    assert (warning.code, warning.line) == ("spec/ignored", 8)


def test_user_is_for_ssh(tmp_path: Path) -> None:
    text = 'schema = 1\n[[pool]]\nname = "a"\nsize = "other"\nnodes = "a1"\n[access]\nvia = "{}"\nuser = "me"\n'
    assert load(tmp_path, text.format("ssh")).warnings == ()
    assert [w.code for w in load(tmp_path, text.format("local")).warnings] == ["spec/ignored"]


def test_a_refused_value_brings_no_second_problem(tmp_path: Path) -> None:
    """`via` is unknown, so nothing is said about what depends on it; `nodes` is broken, so nothing about its length."""
    text = LAB.replace('via = "lab"', 'via = "lba"').replace('"n[0-3]"', '"n[0-"\ncount = 9')
    assert [p.code for p in problems(tmp_path, text)] == ["nodes/syntax", "spec/bad-choice"]


def test_expect_twice(tmp_path: Path) -> None:
    again = '[[expect]]\nfact = "hca_rates_gbps"\nvalue = [1]\nwhy = "x"\npool = "h100"\n'
    assert [p.code for p in problems(tmp_path, GOOD + again)] == ["spec/expect-twice"]
    assert load(tmp_path, GOOD + again.replace('pool = "h100"', 'pool = "login"')).warnings == ()


def test_ten_mistakes_are_ten_problems_in_file_order(tmp_path: Path) -> None:
    text = """\
schema = 1
[cluster]
nmae = "x"
[[pool]]
name = "H 100"
size = "Standard_ND96isr_H10_v5"
nodes = "h100-[000-003]"
count = 5
[fabric]
link = "infinibnad"
planes = 0
[access]
via = "slurm"
fanout = "many"
password = "hunter2"
[[waiver]]
code = "spec/count"
nodes = "h100-009"
reason = "x"
expires = "tomorrow"
"""
    found = problems(tmp_path, text)
    assert [(p.line, p.code) for p in found] == [
        (3, "spec/unknown-key"),
        (5, "spec/bad-text"),
        (6, "spec/unknown-size"),
        (8, "spec/count"),
        (10, "spec/bad-choice"),
        (11, "spec/out-of-range"),
        (14, "spec/wrong-type"),
        (15, "spec/secret"),
        (18, "spec/waiver-nodes"),
        (20, "spec/wrong-type"),
    ]
    assert "hunter2" not in str(SpecError(found))
    assert all(p.source and p.column for p in found)
