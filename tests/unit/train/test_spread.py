"""Which ranks a training run on several nodes starts: by the VM size, the pool or the probe; no CPUs of GPU nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead.base.nodeset import NodeSet
from fairlead.cluster.table import Slurm
from fairlead.errors import TrainError
from fairlead.records.facts import NodeFacts
from fairlead.spec.model import Access, Pool, Spec
from fairlead.train.spread import Asked, gpus_each, job_of
from unit.preflight.test_rank_devices import probed

NODES = NodeSet("n[0-1]")


NONE = Slurm()


def job(size="other", *, gpus=None, facts=(), cpus=False, slurm=NONE):
    spec = Spec(schema=1, access=Access(via="slurm"), pools=(Pool(name="p", size=size, nodes=NODES, gpus=gpus),))
    asked = Asked(config=Path("/share/train.toml"), resume=False, cpus=cpus, host="10.0.0.1")
    return job_of(spec.with_table(slurm), NODES, asked, list(facts))


@pytest.mark.parametrize(
    ("size", "gpus", "facts", "ranks"),
    [
        ("Standard_ND96isr_H200_v5", None, (), (8, "gpu")),  # the VM size alone says it
        ("Standard_ND128isr_GB300_v6", None, (), (4, "gpu")),
        ("Standard_ND96isr_H200_v5", 4, (), (4, "gpu")),
        ("other", 2, (), (2, "gpu")),
        ("other", None, probed(8), (8, "gpu")),  # nobody declared them
        ("other", None, probed(0), (1, "cpu")),
        ("other", None, (), (1, "cpu")),
        ("Standard_HB176rs_v4", None, (), (1, "cpu")),
    ],
)
def test_a_rank_a_gpu_whoever_counted_them(size, gpus, facts, ranks):
    made = job(size, gpus=gpus, facts=facts)
    assert (made.per_node, made.device) == ranks
    assert job(size, gpus=gpus, facts=facts, cpus=True).per_node == 1


def test_a_job_that_holds_some_of_the_gpus_has_as_many_ranks():
    facts = probed(8)
    facts[1].facts["host"] = {"environment": {"SLURM_GPUS_ON_NODE": "2"}}
    assert job("Standard_ND96isr_H200_v5", facts=facts).per_node == 2


def test_nodes_that_show_no_gpu_where_others_have_some_are_named():
    with pytest.raises(TrainError, match=r"no GPU could be counted on n1, ") as raised:
        job(facts=[probed(8)[0], NodeFacts(node="n1", facts={})])
    assert "-x n1" in raised.value.hint
    assert gpus_each({"n0": 8, "n1": 7}) == 7
    assert gpus_each({}) == 0


def test_where_ranks_run_in_a_container_these_do():
    made = job(slurm=Slurm(container_runtime="pyxis", container="/images/train.sqsh"))
    assert made.in_container
    assert made.patience.in_container
    assert not job().in_container
