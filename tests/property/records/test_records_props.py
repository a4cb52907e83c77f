from __future__ import annotations

import re
from ipaddress import ip_address

from hypothesis import given
from hypothesis import strategies as st

from fairlead.base.nodeset import fold
from fairlead.records.codec import from_json, to_json
from fairlead.records.redact import Redactor
from fairlead.records.verdict import Verdict, aggregate

nodes = st.frozensets(st.builds("h200-{:03}".format, st.integers(0, 200)), min_size=1, max_size=12)
filler = st.sampled_from(
    [" ", ", ", "\n", ":", "/", "=", "(", ")", " said ", "-ib0 ", ".json ", "\t", " 5.15 ", "%eth0 "]
)
address = st.ip_addresses().map(str)


@given(nodes, st.lists(filler, max_size=12), st.data())
def test_no_name_and_no_address_survives_and_all_stay_apart(names, between, data):
    words, addresses = [], set()
    for gap in [" ", *between]:
        kind = data.draw(st.sampled_from(["node", "fold", "address"]))
        if kind == "node":
            word = data.draw(st.sampled_from(sorted(names)))
        elif kind == "fold":
            word = fold(names)
        else:
            addresses.add(word := data.draw(address))
        words += [gap, word]
    text = "".join(words)
    redactor = Redactor(nodes=names)
    clean = redactor.text(text)
    for name in names:
        assert name not in clean
    assert "h200" not in clean
    for one in addresses:
        if not (ip_address(one).is_loopback or ip_address(one).is_unspecified):
            assert not re.search(rf"(?<![0-9a-f:.]){re.escape(one)}(?![0-9a-f:.])", clean)
    stand_ins = [redactor.text(f" {n} ") for n in sorted(names)]
    assert len(set(stand_ins)) == len(names)
    assert redactor.text(clean) == clean, "nothing is left for a second pass"


@given(st.lists(st.sampled_from(list(Verdict))), st.lists(st.sampled_from(list(Verdict))))
def test_a_whole_of_wholes_is_the_whole(a, b):
    if a and b:
        assert aggregate([aggregate(a), aggregate(b)]) is aggregate([*a, *b])


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(), children, max_size=4),
    max_leaves=10,
)


@given(json_values)
def test_documents_read_back_as_they_were(value):
    assert from_json(to_json(value), object) == value
    assert from_json(to_json(value, indent=0), object) == value
