from __future__ import annotations

import pytest

from fairlead.base.nodeset import MAX_NODES, NodeSet, expand, fold, is_name
from fairlead.errors import Exit, UsageError


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        ("  ,, ", []),
        ("login", ["login"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("n[1,3,5-6]", ["n1", "n3", "n5", "n6"]),
        ("r[1-2]n[1-2]-ib", ["r1n1-ib", "r1n2-ib", "r2n1-ib", "r2n2-ib"]),
        ("b a", ["b", "a"]),
        ("a\n b\t,c", ["a", "b", "c"]),
        ("[1-2]", ["1", "2"]),
        ("n[98-101]", ["n98", "n99", "n100", "n101"]),
        ("n[098-101]", ["n098", "n099", "n100", "n101"]),
        ("10.0.0.[1-2]", ["10.0.0.1", "10.0.0.2"]),
        ("user@host", ["user@host"]),
    ],
)
def test_expand_reads_what_slurm_users_write(text, names):
    assert expand(text) == names


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], ""),
        (["n1"], "n1"),
        (["n3", "n1", "n2", "n2"], "n[1-3]"),
        (["n1", "n3"], "n[1,3]"),
        (["n9", "n10", "n11"], "n[9-11]"),
        (["n09", "n10"], "n[09-10]"),
        (["n1", "n01"], "n[01,1]"),
        (["n", "n0", "n1"], "n,n[0-1]"),
        (["n" + "9" * 5000, "n1" + "0" * 5000], f"n[{'9' * 5000},1{'0' * 5000}]"),
        (["n99", "n100"], "n[99-100]"),
        (["n099", "n100"], "n[099-100]"),
        (["n0", "n00", "n1"], "n[0,00,1]"),
        (["n1", "n1-ib", "n2", "n2-ib", "n3", "n3-ib"], "n[1-3],n[1-3]-ib"),
        (["r1n1", "r1n2", "r2n1"], "r1n[1-2],r2n1"),
        (["login", "n1", "n2"], "login,n[1-2]"),
        (["n" + "9" * 5000], "n" + "9" * 5000),
    ],
)
def test_fold_writes_it_back(names, text):
    assert fold(names) == text


@pytest.mark.parametrize(
    "text",
    [
        "n[1-",
        "n]1[",
        "n[[1]]",
        "n[]",
        "n[1-2-3]",
        "n[3-1]",
        "n[a-b]",
        "n[1;2]",
        "n[-1]",
        "a b;rm",
        "n[1-2]$",
        "a/b",
        "n[\u0661-\u0663]",
        "n\x00",
        "é",
    ],
)
def test_a_slip_is_refused_with_the_text_and_an_example(text):
    with pytest.raises(UsageError) as caught:
        expand(text)
    assert caught.value.code == "nodes/syntax"
    assert caught.value.exit is Exit.USAGE
    assert text[:100] in caught.value.message
    assert "h200-[000-127]" in caught.value.hint


@pytest.mark.parametrize(
    "text",
    [
        "n[0-999999999]",
        "n[1-" + "9" * 5000 + "]",
        "n[0-999]x[0-9999]",
        f"n[0-{MAX_NODES}]",
        "n[" + ",".join(["0-999999"] * 50) + "]",
        ",".join(f"m{i}-[0-99999]" for i in range(20)),
    ],
)
def test_a_slip_of_a_digit_does_not_fill_memory(text):
    with pytest.raises(UsageError) as caught:
        expand(text)
    assert caught.value.code == "nodes/too-many"
    assert len(caught.value.message) < 400


def test_the_largest_set_is_taken():
    assert len(expand(f"n[1-{MAX_NODES}]")) == MAX_NODES


def test_a_set_is_ordered_indexed_hashable_and_prints_itself():
    nodes = NodeSet(["n10", "n9", "login"])
    assert list(nodes) == ["login", "n9", "n10"]
    assert (nodes[0], nodes[-1], len(nodes), bool(NodeSet())) == ("login", "n10", 3, False)
    assert {nodes: 1}[NodeSet("login,n[9-10]")] == 1
    assert repr(nodes) == "NodeSet('login,n[9-10]')"
    assert "n9" in nodes
    assert "n09" not in nodes
    assert 9 not in nodes
    assert nodes != "login,n[9-10]"


BAD_NAMES = [
    "n2 /shared/x.sbatch", "-n2", "--uid=0", "-oProxyCommand=x", "..", "../n2", "n2/x", "n2,n3", "n[2", "n2;id", "n2\n",
    "x\ny1", "n²", "n\u0663", "", " ", "n2-", "n2.", "n2=x", "$(id)", "n" * 254,
]  # fmt: skip


@pytest.mark.parametrize("name", BAD_NAMES)
def test_what_could_be_an_option_a_path_or_two_words_is_no_node(name):
    with pytest.raises(UsageError) as caught:
        NodeSet(["n1", name])
    assert caught.value.code == "nodes/name"
    assert ascii(name)[:200] in caught.value.message
    assert is_name("n1")
    assert not is_name(name)


@pytest.mark.parametrize("name", ["n1", "10.0.0.1", "fd00::1", "user@host", "gpu_01", "a.b-c.example", "1", "n" * 253])
def test_names_and_addresses_are_nodes(name):
    assert str(NodeSet([name])) == name
    assert NodeSet(name) == NodeSet([name])


def test_sets_made_of_sets_hold_the_same_names():
    a, b = NodeSet("n[1-10]"), NodeSet("n[5-20]")
    assert [str(s) for s in (a | b, a & b, a - b)] == ["n[1-20]", "n[5-10]", "n[1-4]"]
    assert (a | b)[0] == "n1"
    assert hash(a - b) == hash(NodeSet("n[1-4]"))


@pytest.mark.parametrize("text", ["n" + "[1-3]" * 12, ",".join(["n" + "[1-3]" * 11] * 3), "n[0-200000],m[0-60000]"])
def test_a_few_bytes_do_not_become_half_a_million_names(text):
    with pytest.raises(UsageError) as caught:
        NodeSet(text)
    assert caught.value.code in {"nodes/syntax", "nodes/too-many"}
