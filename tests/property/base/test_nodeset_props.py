"""NodeSet against sets of plain strings, the model anybody can check by eye."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.base.nodeset import NodeSet, expand, fold, is_name
from fairlead.errors import UsageError

number = st.integers(0, 120).flatmap(lambda n: st.sampled_from([str(n), f"{n:02}", f"{n:03}"]))
name = st.one_of(
    st.builds("{}{}".format, st.sampled_from(["n", "h200-", "r1n"]), number),
    st.builds("n{}-ib{}".format, number, number),
    st.builds("{}x".format, number),
    st.sampled_from(["login", "a.b.c", "n"]),
)
names = st.frozensets(name, max_size=40)


@given(names)
def test_folding_and_unfolding_gives_the_same_names(some):
    assert set(expand(fold(some))) == some
    assert len(expand(fold(some))) == len(some), "no name twice"


@given(names, names)
def test_algebra_is_that_of_sets(a, b):
    one, other = NodeSet(a), NodeSet(b)
    assert set(one | other) == a | b
    assert set(one & other) == a & b
    assert set(one - other) == a - b
    assert (one <= other) == (a <= b)
    assert (one == other) == (a == b)
    assert len(one) == len(a)
    assert (one == other) <= (hash(one) == hash(other))


@given(names, name)
def test_membership_is_that_of_sets(some, one):
    assert (one in NodeSet(some)) == (one in some)


@given(names)
def test_order_does_not_depend_on_how_the_set_was_made(some):
    backwards = NodeSet(sorted(some, reverse=True))
    assert list(backwards) == list(NodeSet(some)) == list(NodeSet(str(backwards)))


@given(st.lists(st.integers(0, 300), unique=True), st.integers(1, 4))
def test_numbers_come_in_numeric_order(numbers, width):
    made = NodeSet(f"n{i:0{width}}" for i in numbers)
    assert [int(n[1:]) for n in made] == sorted(numbers)


def model(text):
    """Slurm's folded form for one bracket, read the slow way."""
    prefix, _, rest = text.partition("[")
    body, _, suffix = rest.partition("]")
    out = []
    for piece in body.split(","):
        low, _, high = piece.partition("-")
        high = high or low
        width = len(low) if low.startswith("0") else 1
        out += [f"{prefix}{str(i).rjust(width, '0')}{suffix}" for i in range(int(low), int(high) + 1)]
    return out


@given(st.lists(st.tuples(number, st.integers(0, 30)), min_size=1, max_size=5), st.sampled_from(["", "-ib0"]))
def test_ranges_with_padding_are_read_as_the_model_reads_them(pieces, suffix):
    written = [low if not more else f"{low}-{int(low) + more}" for low, more in pieces]
    text = f"n[{','.join(written)}]{suffix}"
    assert expand(text) == model(text)


@given(st.text(max_size=60) | st.text("n0129[]-, ", max_size=30))
def test_junk_is_read_or_refused_never_a_crash(text):
    try:
        found = expand(text)
    except UsageError:
        return
    assert NodeSet(str(NodeSet(found))) == NodeSet(found)


@given(st.lists(st.text(max_size=12), max_size=10))
def test_names_from_elsewhere_are_one_word_or_refused(odd):
    if not all(is_name(name) for name in odd):
        with pytest.raises(UsageError, match="is not a node name"):
            NodeSet(odd)
        return
    made = NodeSet(odd)
    assert set(made) == set(odd)
    assert str(made).split() == ([str(made)] if odd else [])
    assert not str(made).startswith("-")
