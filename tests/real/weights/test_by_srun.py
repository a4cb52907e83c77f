"""`srun --mpi=pmix fairlead weights spread --transport mpi`: the lab's own Slurm starts the ranks, each on its host, by
PMIx, with no mpirun; a real Open MPI carries the chunks over the lab's links.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.cluster.enter import into_host, running
from support.injector import FAIRLEAD, World
from support.origins import Origin
from support.spreads import NAME, digest_of, digest_on, serving_hosts, when_given
from support.trials import world

pytestmark = [
    pytest.mark.real,
    pytest.mark.slow,
    pytest.mark.requires("root", "netns", "srv6", "tbf", "nft", "slurm", "obstore"),
]
pytest.importorskip("mpi4py", reason="missing: pip install 'fairlead[mpi]'")
PMIX = Path("/usr/lib/x86_64-linux-gnu/pmix2/lib/libpmix.so")
"""What Debian's Slurm loads for --mpi=pmix."""
if not PMIX.exists():
    pytest.skip("missing: apt install libpmix-dev", allow_module_level=True)
MIB = 1 << 20
SIZE = 16 * MIB + 77


@pytest.fixture(scope="module")
def lab() -> Iterator[World]:
    """Four hosts on two planes of 100 Mbit/s."""
    with world(hosts=4, gpus=1, planes=2, rate_mbps=100) as made:
        yield made


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("served")
    (made / NAME).write_bytes(random.Random(31).randbytes(SIZE))
    return made


@pytest.fixture
def origin(lab, model) -> Iterator[Origin]:
    with serving_hosts(lab, model) as made:
        yield made


class Job:
    """srun at the lab's head, as a user there types it."""

    def __init__(self, lab: World, origin: Origin, dest: str, *words: str) -> None:
        state = running(lab.name)
        # the wheel of Open MPI finds its parts by this; one that a site has installed needs none of it
        env = {"OPAL_PREFIX": sys.prefix, "OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "tcp,self"}
        env["OMPI_MCA_btl_tcp_if_include"] = "fab0"
        srun = ["srun", "-N4", "--ntasks-per-node=1", "--kill-on-bad-exit=1", "--mpi=pmix", "--chdir=/tmp", *words]
        spread = [*FAIRLEAD, "weights", "spread", f"{origin.url}/{NAME}", dest, "--transport", "mpi", "--json"]
        argv = ["env", *(f"{k}={v}" for k, v in env.items()), *srun, *spread, "--runs", "/tmp/runs"]
        head = into_host(state, state.host("head"), argv)
        self.child = subprocess.Popen(head, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def end(self) -> tuple[int, dict, str]:
        try:
            out, err = self.child.communicate(timeout=90)
        except subprocess.TimeoutExpired:
            self.child.terminate()
            self.child.communicate(timeout=30)
            raise
        return self.child.returncode, json.loads(out[: out.rindex("}") + 1]) if "}" in out else {}, err


def test_slurm_starts_the_ranks_and_every_host_has_it(lab, origin, model):
    status, result, err = Job(lab, origin, "/tmp/w-srun").end()
    assert status == 0, err
    assert (result["complete"], result["origin_bytes"], origin.given) == ("n[0-3]", SIZE, SIZE)
    assert {digest_on(lab, host, "/tmp/w-srun") for host in lab.nodes} == {digest_of(model)}
    lab.sh("n2", "rm -rf /tmp/w-srun")
    status, again, err = Job(lab, origin, "/tmp/w-srun").end()
    assert (status, again["origin_bytes"], again["root"]) == (0, 0, result["root"]), err
    assert (origin.given, digest_on(lab, "n2", "/tmp/w-srun")) == (SIZE, digest_of(model))


def test_a_rank_that_is_killed_ends_the_step_and_the_next_one_goes_on(lab, origin, model):
    origin.rate = 6e6
    job = Job(lab, origin, "/tmp/w-killed")
    when_given(origin, SIZE // 2, lambda: lab.sh("n1", "pkill -KILL -f -- '--transport mp[i]'")).join()
    status, _, err = job.end()
    assert status != 0
    assert "n1: task 1: Killed" in err, "Slurm names the host"
    assert not any(lab.sh(host, f"ls /tmp/w-killed/{NAME} || true") for host in lab.nodes), "nothing half"
    origin.rate, before = 0, origin.given
    status, _, err = Job(lab, origin, "/tmp/w-killed").end()
    assert status == 0, err
    assert origin.given - before < SIZE, "what is on a disk is not fetched again"
    assert {digest_on(lab, host, "/tmp/w-killed") for host in lab.nodes} == {digest_of(model)}


def test_two_ranks_on_a_host_are_said_in_a_sentence(lab, origin):
    job = Job(lab, origin, "/tmp/w-two", "-n8", "--ntasks-per-node=2", "--overcommit")
    out, err = job.child.communicate(timeout=60)
    assert job.child.returncode != 0
    assert "has 2 ranks, and a node takes part once" in out + err
