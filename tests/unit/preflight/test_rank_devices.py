"""A rank that should have a GPU and has none, and why; GPUs that are slower than their peers."""

from __future__ import annotations

import os
from types import SimpleNamespace

import msgspec
import pytest

from fairlead.base.nodeset import NodeSet
from fairlead.preflight.ranks.judge import judge_ranks
from fairlead.preflight.ranks.judge_launch import judge_launch
from fairlead.preflight.ranks.limits import Numbers
from fairlead.preflight.ranks.onnode import device
from fairlead.preflight.ranks.wanted import Wanted, per_node, wanted_of
from fairlead.records.facts import NodeFacts
from fairlead.records.verdict import Verdict
from fairlead.spec.model import Access, Fabric, Pool
from fairlead.spec.tables import spec_type
from fairlead.spec.vmsize import size
from support.rank_facts import of, ranks, say, stop_at

GPUS = Wanted(device="gpu", gpus={f"n{i}": 8 for i in range(4)})

CPU_BUILD = {"torch": "2.8.0+cpu", "cuda": ""}
CAUSES = {
    "cpu-build": (CPU_BUILD, "built without CUDA and without ROCm"),
    "hidden": ({"visible": {"CUDA_VISIBLE_DEVICES": ""}}, "CUDA_VISIBLE_DEVICES is empty, which hides every GPU"),
    "no-device-files": ({"device_files": 0}, "no device file of a GPU is to be seen from it, though the driver"),
    "no-permission": ({"unreadable_files": 8, "device_files": 8}, "may open none of the 8 device files"),
    "old-driver": ({"driver": "535.129.03", "driver_cuda": "12.2", "cuda": "13.0"},
                   "the GPU driver (535.129.03) supports CUDA 12.2, and its torch is built for 13.0"),
    "refused": ({"why_not": "CUDA driver initialization failed: system not yet initialized"}, "not yet initialized"),
}  # fmt: skip


def without_gpu(*which, cause="cpu-build", num_nodes=4, per=8):
    """Ranks that came up, found no GPU and said why; the others were stopped when those ended."""
    facts = ranks(num_nodes, per, broken="a rank ended")
    for rank in range(facts.wanted):
        if rank in which:
            stop_at(facts, rank, "import", rc=1)
            torch = {"torch": "2.8.0+cu128", "cuda": "12.8", "hip": "", "num_devices": 0, "driver": "570.172.08",
                     "driver_cuda": "12.8", "device_files": per, "unreadable_files": 0, "visible": {},
                     "why_not": "Torch not compiled with CUDA enabled" if cause == "cpu-build" else ""}  # fmt: skip
            own = {"rank": rank, "node": facts.nodes[rank // per]}
            say(facts, own, "torch", 5.0, **torch | CAUSES[cause][0])
            say(facts, own, "error", 5.0, phase="import", kind="NoGpuError", text="torch reaches no GPU", at="run:1")
        else:
            stop_at(facts, rank, "join", state="stopped", rc=75)
    return facts


@pytest.mark.parametrize("cause", CAUSES)
def test_each_cause_is_told_from_the_others(cause):
    (found,) = judge_ranks(without_gpu(13, cause=cause), {}, GPUS)
    assert (found.code, found.verdict, str(found.subject)) == ("preflight/no-gpu", Verdict.FAIL, "n1 rank 13")
    assert found.data["cause"] == cause
    assert CAUSES[cause][1] in found.message


def test_all_ranks_of_a_node_are_the_node():
    (found,) = judge_ranks(without_gpu(*range(8, 16), cause="no-device-files"), {}, GPUS)
    assert (found.subject.kind, found.subject.nodes, found.data["ranks"]) == ("node", ("n1",), list(range(8, 16)))
    assert "8 ranks of 8 on it have no GPU" in found.message


def test_the_same_on_every_rank_is_the_jobs_software_and_no_nodes_fault():
    (found,) = judge_ranks(without_gpu(*range(32)), {}, GPUS)
    assert (found.verdict, found.subject.kind, found.subject.nodes) == (Verdict.FAIL, "job", ())
    assert "none of the 32 ranks has a GPU" in found.message


def test_a_run_on_cpus_that_finished_is_no_pass_where_gpus_are_counted():
    """What passed before: every collective done, by gloo."""
    facts = ranks(4, 8, on="cpus")
    for rank in range(32):
        of(facts, rank, "torch").update(num_devices=0, device_files=8)
    codes = [f.code for f in judge_ranks(facts, {}, GPUS)]
    assert codes == ["preflight/no-gpu"]


@pytest.mark.parametrize("wanted", [Wanted(device="cpu", gpus={"n0": 2}), Wanted(device="any")])
def test_ranks_that_are_to_use_cpus_need_none(wanted):
    facts = ranks(on="cpus")
    for rank in range(8):
        of(facts, rank, "torch")["num_devices"] = 0
    assert "preflight/collective" in [f.code for f in judge_ranks(facts, {}, wanted)]


def test_the_launch_does_not_complain_of_the_same_rank_again():
    assert "preflight/gpu-missing" not in [f.code for f in judge_launch(without_gpu(13), GPUS)]


# ---- what a rank reads -----------------------------------------------------------------------------------------------


class NoCuda:
    """torch.cuda of a build without CUDA."""

    def is_available(self):
        return False

    def init(self):
        raise AssertionError("Torch not compiled with CUDA enabled")


def test_a_rank_reads_why_it_has_no_gpu(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    found = device.gpu_reach(SimpleNamespace(cuda=NoCuda()))
    assert found["num_devices"] == 0
    assert found["visible"] == {"CUDA_VISIBLE_DEVICES": ""}
    assert "not compiled with CUDA" in found["why_not"]


def test_memory_for_copies_is_had_beside_the_device_wherever_the_process_was_put(tmp_path):
    may = os.sched_getaffinity(0)
    first = min(may)
    place = tmp_path / "0001:00:00.0"
    place.mkdir()
    (place / "local_cpulist").write_text(f"{first},4000-4003\n")
    with device.beside("0001:00:00.0", str(tmp_path)):
        assert os.sched_getaffinity(0) == {first}
    assert os.sched_getaffinity(0) == may
    for pci, says in (("0002:00:00.0", None), ("0001:00:00.0", "4000-4003"), ("0001:00:00.0", ""), ("", None)):
        if says is not None:
            (place / "local_cpulist").write_text(says)
        with device.beside(pci, str(tmp_path)):
            assert os.sched_getaffinity(0) == may


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024", "550.54.15"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.95.05  Release Build", "580.95.05"),
    ],
)
def test_the_drivers_version_on_both_architectures(monkeypatch, tmp_path, text, version):
    (tmp_path / "version").write_text(text + "\nGCC version: 12.3.0\n")
    real = open
    monkeypatch.setattr(
        "builtins.open", lambda path, *a: real(str(path).replace("/proc/driver/nvidia", str(tmp_path)), *a)
    )
    assert device.kernel_driver() == version


# ---- how many there should be ----------------------------------------------------------------------------------------


def spec(name="other", gpus=None, **preflight):
    made = spec_type()(
        schema=1, access=Access(via="ssh"), pools=(Pool(name="p", size=name, nodes=NodeSet("n[0-1]"), gpus=gpus),)
    )
    from fairlead.preflight.table import Preflight

    return made.with_table(Preflight(**preflight))


def probed(num):
    """What the probe reads of a node with so many GPUs: in the driver, and on the PCI bus."""
    names = [f"0000:0{i}:00.0" for i in range(num)]
    facts = {
        "nvidia": {"driver": {"gpus": {name: {"excluded": "No"} for name in names}}},
        "pci": {"devices": {name: {"class": "0x030200", "vendor": "0x10de"} for name in names}},
    }
    return [NodeFacts(node=f"n{i}", facts=facts) for i in range(2)]


def test_where_the_file_does_not_say_ranks_are_as_many_as_the_probe_counted():
    """One of eight was tested before."""
    wanted = wanted_of(spec(), ["n0", "n1"], probed(8))
    assert (per_node(wanted), wanted.device) == (8, "gpu")


@pytest.mark.parametrize(
    ("name", "gpus", "counted", "each", "device_"),
    [
        ("Standard_ND96isr_H100_v5", None, 0, 8, "gpu"),
        ("Standard_ND128isr_GB300_v6", None, 4, 4, "gpu"),
        ("other", 2, 8, 2, "gpu"),
        ("other", 0, 0, 1, "cpu"),
        ("other", None, 0, 1, "cpu"),
    ],
)
def test_the_vm_size_and_the_pool_go_before_the_probe(name, gpus, counted, each, device_):
    wanted = wanted_of(spec(name, gpus), ["n0", "n1"], probed(counted))
    assert (per_node(wanted), wanted.device) == (each, device_)


@pytest.mark.parametrize(("rdma", "gbps"), [("none", 0.0), ("ib", 400.0)])
def test_ports_that_the_file_does_not_use_are_no_measure_of_rails(rdma, gbps):
    fabric = Fabric(link="infiniband", rdma=rdma)
    h200 = msgspec.structs.replace(spec("Standard_ND96isr_H200_v5"), fabric=fabric)
    assert wanted_of(h200, ["n0", "n1"], []).port_gbps == gbps


def test_a_job_of_some_of_the_gpus_has_as_many_ranks():
    facts = probed(8)
    for record in facts:
        record.facts["host"] = {"environment": {"SLURM_GPUS_ON_NODE": "2"}}
    wanted = wanted_of(spec("Standard_ND96isr_H100_v5"), ["n0", "n1"], facts)
    assert (per_node(wanted), wanted.device) == (2, "gpu")


def test_mi300x_is_counted_by_its_driver():
    on_bus = {f"0000:0{i}:00.0": {"class": "0x120000", "vendor": "0x1002"} for i in range(8)}
    facts = {"amd": {"loaded": True, "kfd": {str(i): {} for i in range(8)}}, "pci": {"devices": on_bus}}
    assert wanted_of(spec(), ["n0"], [NodeFacts(node="n0", facts=facts)]).gpus == {"n0": 8}


def test_ports_of_storage_are_none_that_the_library_leaves_out():
    """A cluster of DGX-like nodes: NCCL is told to leave the storage network alone, and that is well."""
    port = {"link_layer": "InfiniBand", "state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": "400 Gb/sec (4X NDR)"}
    devices = {f"mlx5_{i}": {"ports": {"1": port}} for i in range(10)}
    rails = frozenset(f"mlx5_{i}" for i in range(8))
    host = {"environment": {}, "nccl_conf": {"NCCL_IB_HCA": "=" + ",".join(sorted(rails))}}
    facts = [NodeFacts(node=f"n{i}", facts={"ib": {"devices": devices}, "host": host}) for i in range(2)]
    ib = msgspec.structs.replace(spec(), fabric=Fabric(link="infiniband", rdma="ib"))
    assert wanted_of(ib, ["n0", "n1"], facts).hcas == {"n0": rails, "n1": rails}


def test_where_nothing_could_be_read_nobody_says_that_there_are_none():
    wanted = wanted_of(spec(), ["n0"], [NodeFacts(node="n0", facts={})])
    assert (wanted.device, per_node(wanted)) == ("any", 1)


def test_the_file_may_say_that_ranks_use_cpus():
    assert wanted_of(spec(gpus=8, ranks_on="cpus"), ["n0"], []).device == "cpu"


def test_the_lab_says_so_of_its_own_hosts(tmp_path):
    """Its GPUs are only shown; this is a value with an origin like any other."""
    from fairlead.preflight.table import Preflight
    from fairlead.spec import load

    file = tmp_path / "c.toml"
    file.write_text('schema = 1\n[access]\nvia = "lab"\n')
    assert load(file).table(Preflight).ranks_on == "cpus"


# ---- slow ones -------------------------------------------------------------------------------------------------------


def slow(rank=13, **rates):
    facts = ranks(4, 8)
    for other in range(32):
        card = of(facts, other, "card")
        for name in ("matmul_flops", "copy_bytes_s", "h2d_bytes_s", "d2h_bytes_s"):
            card[name] *= 1 + 0.004 * (other % 5 - 2)
    of(facts, rank, "card").update(rates)
    return facts


def cards(facts, **more):
    return [f for f in judge_ranks(facts, {}, Wanted(**more)) if f.code == "preflight/slow-gpu"]


def test_equal_gpus_are_well():
    assert cards(slow()) == []


@pytest.mark.parametrize(
    ("rates", "verdict", "says"),
    [
        ({"matmul_flops": 5.5e14}, Verdict.FAIL, "matrix rate 550 TFLOPS, 74% of the median's 740"),
        ({"matmul_flops": 6.7e14}, Verdict.WARN, "matrix rate 670 TFLOPS, 91%"),
        ({"h2d_bytes_s": 2.6e10}, Verdict.FAIL, "copy from the host 26 GB/s, 50%"),
        ({"d2h_bytes_s": 2.6e10}, Verdict.FAIL, "copy to the host"),
        ({"copy_bytes_s": 2.4e12}, Verdict.WARN, "memory copy 2.4e+03 GB/s, 83%"),
    ],
)
def test_a_slow_gpu_is_named_by_index_pci_and_uuid(rates, verdict, says):
    (found,) = cards(slow(**rates))
    assert (found.verdict, str(found.subject)) == (verdict, "n1 GPU 5 0005:00:00.0 GPU-n1-5")
    assert says in found.message


def test_several_quantities_of_one_gpu_are_one_finding():
    (found,) = cards(slow(matmul_flops=5e14, copy_bytes_s=1e12))
    assert "matrix rate" in found.message
    assert "memory copy" in found.message


def test_a_slow_all_reduce_within_a_node_is_said_once_for_the_node():
    facts = slow()
    for rank in range(8, 16):
        of(facts, rank, "card")["node_reduce_s"] = 0.003
    (found,) = cards(facts)
    assert found.subject.nodes == ("n1",)
    assert "all-reduce within the node" in found.message


def test_two_models_of_gpu_are_compared_each_with_its_own():
    facts = slow()
    for rank in range(16):
        of(facts, rank, "torch")["device"]["name"] = "NVIDIA A100-SXM4-80GB"
        of(facts, rank, "card")["matmul_flops"] = 2.7e14 * (1 + 0.001 * (rank % 5))
    assert cards(facts) == []


def test_all_slow_alike_is_found_by_the_vm_size():
    facts = slow()
    for rank in range(32):
        of(facts, rank, "card")["matmul_flops"] = 4e14
    assert len(cards(facts, size=size("Standard_ND96isr_H100_v5"))) == 32
    assert cards(slow(), size=size("Standard_ND96isr_H100_v5")) == []


def test_the_numbers_can_be_the_sites_own():
    facts = slow(matmul_flops=6.7e14)
    assert cards(facts, numbers=Numbers({"gpu_matmul_warn_share": 0.9})) == []


def test_a_slow_cpu_rank_is_named_and_ranks_that_share_cores_are_not():
    facts = ranks(4, 2, on="cpus")
    for rank in range(8):
        own = {"rank": rank, "node": facts.nodes[rank // 2]}
        say(facts, own, "card", 5.2, matmul_flops=9e10 / (1 + rank % 3),
            copy_bytes_s=8e10 / (1 + rank % 2), matmul="float32 192", took_s=0.1)  # fmt: skip
    assert cards(facts) == []
    of(facts, 6, "card")["matmul_flops"] = 4e9
    assert cards(facts) == []  # held up for a moment
    of(facts, 6, "card")["copy_bytes_s"] = 4e9
    (found,) = cards(facts)
    assert (found.verdict, str(found.subject)) == (Verdict.WARN, "n3 rank 6")
