"""Whom a rank's numbers accuse: the device, its node, or nobody. Written as an owner of such nodes would ask."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fairlead.preflight.ranks.judge import judge_ranks
from fairlead.preflight.ranks.onnode.device import Card
from fairlead.preflight.ranks.wanted import Wanted
from fairlead.records.verdict import Verdict
from fairlead.spec.vmsize import Expected, VmSize
from support.rank_facts import nccl_lines, of, ranks, say, stop_at

GPUS = Wanted(device="gpu", gpus={f"n{i}": 8 for i in range(4)})


def slow():
    """Cards that spread as good ones do."""
    facts = ranks(4, 8)
    for rank in range(32):
        card = of(facts, rank, "card")
        for name in ("matmul_flops", "copy_bytes_s", "h2d_bytes_s", "d2h_bytes_s"):
            card[name] *= 1 + 0.004 * (rank % 5 - 2)
    return facts


def refused(**said):
    """Rank 13 reached no GPU, and said why; the others were stopped."""
    facts = ranks(4, 8, broken="a rank ended")
    for rank in range(32):
        stop_at(facts, rank, "import" if rank == 13 else "join", state="stopped", rc=75)
    torch = {"torch": "2.8.0+cu128", "cuda": "12.8", "hip": "", "num_devices": 0, "driver": "570.172.08",
             "driver_cuda": "12.8", "device_files": 8, "unreadable_files": 0, "visible": {}}  # fmt: skip
    say(facts, {"rank": 13, "node": "n1"}, "torch", 5.0, **torch | said)
    return facts


def found_of(facts, code, **wanted):
    return [f for f in judge_ranks(facts, {}, Wanted(**wanted)) if f.code == code]


def test_a_slow_all_reduce_within_a_node_accuses_none_of_its_gpus():
    """Eight GPUs and their NVLinks take part: which of them holds it up, the time does not tell."""
    facts = slow()
    for rank in range(8, 16):
        of(facts, rank, "card")["node_reduce_s"] = 0.003
    (found,) = found_of(facts, "preflight/slow-gpu")
    assert (found.subject.kind, found.subject.nodes, found.subject.name) == ("node", ("n1",), "")
    assert "nvlink" in found.remedy
    of(facts, 8, "card")["matmul_flops"] = 5.5e14
    assert [str(f.subject) for f in found_of(facts, "preflight/slow-gpu")] == ["n1 GPU 0 0000:00:00.0 GPU-n1-0", "n1"]


RACK = VmSize(
    name="Standard_ND128isr_NDR_GB200_v6",
    gpus=4,
    reached={
        "rack_allreduce_busbw_gbs": (Expected(message_bytes=1, fail_below=600.0, source="s"),),
        "job_allreduce_busbw_gbs": (Expected(message_bytes=1, fail_below=0.01, source="s"),),
    },
)


def over_racks(*with_network):
    """Multi-node NVLink between the nodes of a rack; ranks at its edge have channels over InfiniBand, too."""
    facts = ranks(4, 4)
    for rank in range(16):
        lines = ["NCCL version 2.28.3+cuda13.0", *nccl_lines(rank % 4, 1)[1:3], "via P2P/MNNVL"]
        if rank in with_network:
            lines.append(f"[send] via NET/IB/{rank % 4}/GDRDMA")
        of(facts, rank, "nccl")["lines"] = dict.fromkeys(lines, 1)
    return facts


def test_a_job_over_two_racks_is_not_held_against_what_one_rack_reaches():
    """Rings of two NVL72 racks cross the network at two ranks of each rail; most ranks see NVLink alone."""
    assert found_of(over_racks(), "preflight/busbw", rdma="ib", size=RACK), "a rack is"
    assert not found_of(over_racks(0, 15), "preflight/busbw", rdma="ib", size=RACK)


ODD = {
    # torch's words around the error's own; numbers and names: CUDA Runtime API, cudaError_t
    "Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices() that "
    "might have already set an error? Error 802: system not yet initialized": "nvidia-fabricmanager",
    "Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices() that "
    "might have already set an error? Error 803: system has unsupported display driver / cuda driver combination":
        "libcuda",
    "Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices() that "
    "might have already set an error? Error 804: forward compatibility was attempted on non supported HW":
        "cuda-compat",
    "Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices() that "
    "might have already set an error? Error 101: invalid device ordinal": "CUDA_VISIBLE_DEVICES",
    "CUDA unknown error - this may be due to an incorrectly set up environment, e.g. changing env variable "
    "CUDA_VISIBLE_DEVICES after program start. Setting the available devices to be zero.": "nvidia-uvm",
}  # fmt: skip


@pytest.mark.parametrize(("said", "remedy"), ODD.items())
def test_what_cuda_answers_has_its_own_remedy(said, remedy):
    (found,) = judge_ranks(refused(why_not=said), {}, GPUS)
    assert remedy in found.remedy
    if number := said.partition("Error ")[2]:
        assert f"Error {number}" in found.message


def test_devices_behind_an_index_that_is_none_are_hidden():
    """`-1,0`: only devices before the first invalid index are visible (CUDA C++ Programming Guide)."""
    (found,) = judge_ranks(refused(visible={"CUDA_VISIBLE_DEVICES": "-1,0"}), {}, GPUS)
    assert found.data["cause"] == "hidden"


# ---- what could not be measured --------------------------------------------------------------------------------------

OOM = "CUDA out of memory. Tried to allocate 1024.00 MiB. GPU 0 has a total capacity of 79.10 GiB of which 12.00 MiB is"
BLAS = "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx( handle, ...)`"


@pytest.mark.parametrize(
    ("part", "said", "verdict", "words"),
    [
        ("matrix", BLAS, Verdict.FAIL, "could not multiply matrices: CUDA error: CUBLAS_STATUS_EXECUTION_FAILED"),
        ("copy", OOM, Verdict.WARN, "could not copy within its memory: CUDA out of memory"),
    ],
)
def test_a_gpu_that_could_not_be_measured_where_others_were_is_named(part, said, verdict, words):
    facts = slow()
    card = of(facts, 13, "card")
    card["missed"] = {part: said}
    for name in {"matrix": ("matmul_flops", "matmul"), "copy": ("copy_bytes_s",)}[part]:
        del card[name]
    (found,) = found_of(facts, "preflight/slow-gpu")
    assert (found.verdict, str(found.subject)) == (verdict, "n1 GPU 5 0005:00:00.0 GPU-n1-5")
    assert words in found.message


def test_what_no_gpu_of_a_kind_can_do_accuses_none():
    facts = slow()
    for rank in range(32):
        card = of(facts, rank, "card")
        card["missed"] = {"matrix": "CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasGemmEx`"}
        del card["matmul_flops"]
    (found,) = found_of(facts, "preflight/slow-gpu")
    assert (found.verdict, found.subject.kind) == (Verdict.UNKNOWN, "job")


def test_a_card_tells_what_it_could_not_measure():
    torch = pytest.importorskip("torch")

    def refuse(*_args, **_kwargs):
        raise RuntimeError(OOM)

    odd = SimpleNamespace(**{n: getattr(torch, n) for n in ("zeros", "empty_like", "uint8", "float32", "mm", "cuda")})
    odd.randn = refuse
    found = Card(odd, "cpu", lambda: None, is_gpu=False).measure()
    assert found["missed"] == {"matrix": OOM}
    assert found["copy_bytes_s"] > 0
