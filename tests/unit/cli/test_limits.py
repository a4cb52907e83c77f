"""`fairlead limits`: what it lists is what judges, and nothing that judges a fact is missing."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import fairlead.checks
from fairlead.checks.limits import JUDGED
from fairlead.checks.messages import patterns
from fairlead.cli.common import spec_of_size
from fairlead.cli.limits import every_limit
from fairlead.preflight.nodes.patience import rows
from fairlead.preflight.pairs.limits import table
from fairlead.preflight.ranks.limits import numbers
from fairlead.records.codes import explanations
from fairlead.records.limit import Limit
from fairlead.spec import sizes
from fairlead.spec.contract import Contract, expectable
from fairlead.spec.tables import kind_of
from fairlead.spec.vmsize import EXPECTED

H100 = "Standard_ND96isr_H100_v5"
FILE = """\
schema = 1
[[pool]]
name = "p"
size = "Standard_ND96isr_H100_v5"
nodes = "n[1-2]"
[fabric]
link = "infiniband"
rdma = "ib"
[access]
via = "ssh"
[[expect]]
fact = "memlock_gib"
value = 64
why = "our images set this"
[[expect]]
fact = "job_allreduce_busbw_gbs"
value = 350
why = "measured in May"
"""


def listed(fairlead, *words) -> list[Limit]:
    import msgspec

    done = fairlead("limits", *words, "--json")
    assert done.status == 0
    return [msgspec.convert(row["limit"], Limit) for row in done.document["limits"]]


def test_a_vm_sizes_numbers_with_unit_source_and_override(fairlead):
    found = {(at.name, at.judges): at for at in listed(fairlead, "--size", H100)}
    rate = found["hca_rates_gbps", "one of"]
    assert (rate.value, rate.unit, rate.code, rate.key) == ((400,), "Gb/s", "ib/port-rate", "[[expect]] hca_rates_gbps")
    assert "Azure documentation" in rate.source
    busbw = found["job_allreduce_busbw_gbs", "fail below"]
    assert (busbw.value, busbw.unit, busbw.code) == (300, "GB/s", "preflight/busbw")


def test_what_the_cluster_file_says_instead_is_listed_with_its_reason(fairlead, own_folder):
    (own_folder / "cluster.toml").write_text(FILE)
    found = {(at.name, at.judges): at for at in listed(fairlead)}
    assert (found["memlock_gib", "at least"].value, found["job_allreduce_busbw_gbs", "fail below"].value) == (64, 350)
    assert "our images set this" in found["memlock_gib", "at least"].source
    assert "measured in May" in str(found["job_allreduce_busbw_gbs", "fail below"].source)
    assert ("job_allreduce_busbw_gbs", "warn below") not in found


@pytest.mark.parametrize("size", sizes())
def test_every_limit_of_every_size_is_whole(size):
    for _, at in every_limit(spec_of_size(size)):
        assert at.what, at.name
        assert at.source, at.name
        assert at.code in explanations(), at.name
        assert at.key.removeprefix("[[expect]] ") in expectable() or is_setting(at.key), at.name
        assert at.unit or isinstance(at.value, int | tuple), f"{at.name}: a number with a fraction has a unit"


def is_setting(key):
    """Whether `table.field` is a setting of the cluster file."""
    name, _, field = key.partition(".")
    return field.partition(".")[0] in kind_of(name).__struct_fields__


def test_each_number_a_rule_asks_for_is_listed():
    """A rule asks by `expect.get("fact")`; words and switches are no numbers."""
    asked = set()
    for file in Path(fairlead.checks.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("expect.get"):
                asked |= {arg.value for arg in node.args if isinstance(arg, ast.Constant)}
    asked |= {pattern.limit for pattern in patterns() if pattern.limit}
    words = {name for name in asked if "str" in str(Contract.__annotations__.get(name, "")) or name in WORDS}
    assert asked - words == set(JUDGED)


WORDS = {"accelerated_networking", "cpu_arch", "gpu_vendor", "gpu_model", "fabric_manager", "ipoib"}


def test_one_word_narrows_the_list_and_an_unknown_one_is_refused(fairlead):
    assert {at.name for at in listed(fairlead, "memlock", "--size", H100)} == {"memlock_gib"}
    own = {*numbers(), *table(), *rows()}
    assert {at.name for at in listed(fairlead, "preflight", "--size", H100)} <= set(EXPECTED) | own
    done = fairlead("limits", "memlok_gib")
    assert (done.status, "did you mean `memlock_gib`?" in done.err) == (2, True)
    assert fairlead("limits", "--size", "ND96", "--json").document["error"]["code"] == "cli/no-size"
