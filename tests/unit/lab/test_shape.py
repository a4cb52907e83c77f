"""Bad input is refused before anything is built, by name and with what would do."""

from __future__ import annotations

import msgspec
import pytest

from fairlead.errors import LabError, UsageError
from fairlead.lab.shape import LabShape, check_memory
from fairlead.records.codec import builtins


def code(**changes):
    with pytest.raises((LabError, UsageError)) as caught:
        LabShape(**changes)
    return caught.value.code


def test_the_default_is_four_hosts_on_four_planes():
    topo = LabShape().topology
    assert (topo.num_hosts, topo.planes, topo.t0, topo.t1, topo.num_switches) == (4, 4, 2, 2, 16)


def test_a_topology_that_does_not_divide_is_refused():
    assert code(t0=3) == "spec/topology-divide"


@pytest.mark.parametrize("name", ["", "Lab", "a_b", "-a", "a-", "x" * 33, "a/b", "../x"])
def test_names_that_cannot_be_file_or_host_names_are_refused(name):
    assert code(name=name) == "lab/bad-name"
    assert code(nodes=("n0", name), t0=2) == "lab/bad-name"


@pytest.mark.parametrize("nodes", [("n0", "n0"), ("n0", "head"), ("mgmt", "n1")])
def test_host_names_are_distinct_and_not_reserved(nodes):
    assert code(nodes=nodes) == "lab/bad-name"


def test_more_than_a_machine_is_made_for_is_refused():
    assert code(planes=9) == "lab/too-large"
    assert code(nodes=tuple(f"n{i}" for i in range(258))) == "lab/too-large"


def test_memory_is_refused_with_the_estimate_and_what_would_fit():
    shape = LabShape(nodes=tuple(f"n{i}" for i in range(64)), scratch_mib=4096)
    check_memory(shape, shape.memory_kib)
    with pytest.raises(LabError) as caught:
        check_memory(shape, shape.memory_kib // 2)
    assert caught.value.code == "lab/memory"
    assert "64 hosts need about" in caught.value.message
    assert "up to 32 hosts" in caught.value.hint
    with pytest.raises(LabError) as caught:
        check_memory(shape, 1000)
    assert caught.value.hint == "use a smaller `scratch_mib` (now 4096)"


def test_a_shape_survives_its_record():
    shape = LabShape(planes=2, rate_mbps=100)
    assert msgspec.convert(builtins(shape), LabShape) == shape


def test_the_cluster_files_default_lab_is_the_default_shape():
    from fairlead.spec import preset

    assert LabShape.from_spec(preset("lab").spec) == LabShape()
