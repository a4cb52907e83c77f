# ruff: noqa: E501 - one line a message, as it is printed
"""What ranks say when they break, in the words of torch, NCCL and gloo: whose own error it is, and who only waits.

Written from pytorch (torch/csrc/distributed/c10d/{NCCLUtils.hpp,ProcessGroupNCCL.cpp,TCPStore.cpp,socket.cpp},
c10/cuda/CUDAException.cpp), NVIDIA/nccl (src/misc/{socket,shmutils,ibvwrap}.cc, include/checks.h, include/alloc.h) and gloo
(transport/tcp/pair.cc, unbound_buffer.cc); logs quoted in NVIDIA/nccl issues 380, 562, 795, 1232, 1235, 1514, 1657, 2076,
in nccl-tests issues 166, 185 and 252, in gpt-fast issue 98.
"""

from __future__ import annotations

import pytest

from fairlead.preflight.ranks.facts import RankFacts
from fairlead.preflight.ranks.judge import judge_ranks
from fairlead.preflight.ranks.wanted import Wanted
from fairlead.records.verdict import Verdict
from support.rank_facts import ranks, say, stop_at

ADDRESSES = {f"n{i}": f"10.2.0.{i}" for i in range(4)}
REMOTE = "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.hpp:268, remote process exited or there was a network error, NCCL version 2.21.5\nncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\nLast error:\n"
SYSTEM = "NCCL error in: /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:3356, unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.27.5\nncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.\nLast error:\n"
INTERNAL = "NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1275, internal error, NCCL version 2.14.3\nncclInternalError: Internal check failed.\nLast error:\n"
CUDA = "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:77, unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.26.2\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\n"
ADVICE = "\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1"

ABOUT_A_PEER = {
    "closed, since 2.18": ("DistBackendError", REMOTE + "socketProgress: Connection closed by remote peer login-1.cluster<41234>"),
    "reset": ("DistBackendError", REMOTE + "socketProgressOpt: Call to recv from 10.2.0.9<33759> failed : Connection reset by peer"),
    "closed, as an internal error": ("DistBackendError", INTERNAL + "Net : Connection closed by remote peer user<50260>"),
    "a broken pipe": ("DistBackendError", INTERNAL + "Net : Call to recv from 10.2.0.9<58355> failed : Broken pipe"),
    "refused": ("DistBackendError", SYSTEM + "Call to connect returned Connection refused"),
    "no way there": ("DistBackendError", SYSTEM + "Call to ibv_modify_qp failed with error Network is unreachable"),
    "a queue pair that did not come up": ("DistBackendError", SYSTEM + "Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_3:1, curr state INIT, next state RTR, local GID index 3, local GID N/A, remote GID N/A"),
    "no answer": ("DistBackendError", REMOTE + "NET/IB: Got completion from peer 10.2.0.9<44206> with status=12 opcode=0 len=0 vendor err 129 (Send) hca mlx5_3"),
    "the watchdog": ("RuntimeError", "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12, OpType=ALLREDUCE, NumelIn=268435456, NumelOut=268435456, Timeout(ms)=600000) ran for 600081 milliseconds before timing out."),
    "gloo, closed": ("RuntimeError", "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.2.0.9]:23451"),
    "gloo, waited": ("RuntimeError", "[/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 1800000ms for recv operation to complete"),
    "gloo, connects in vain": ("RuntimeError", "Gloo connectFullMesh failed with [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:144] no error"),
    "the store, gone": ("DistNetworkError", "Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?"),
    "the store, waited": ("DistStoreError", "Timed out after 301 seconds waiting for clients. 15/16 clients joined."),
    "the store, a key": ("DistStoreError", "wait timeout after 300000ms, keys: /default_pg/0//cuda//0"),
}  # fmt: skip

OWN = {
    "ECC": ("AcceleratorError", "CUDA error: uncorrectable ECC error encountered" + ADVICE),
    "an illegal access": ("RuntimeError", "CUDA error: an illegal memory access was encountered" + ADVICE),
    "launch failure": ("RuntimeError", "CUDA error: unspecified launch failure" + ADVICE),
    "NVLink": ("AcceleratorError", "CUDA error: Invalid access of peer GPU memory over nvlink or a hardware error" + ADVICE),
    "memory": ("OutOfMemoryError", "CUDA out of memory. Tried to allocate 12.12 GiB. GPU 3 has a total capacity of 79.10 GiB of which 1.20 GiB is free."),
    "busy": ("RuntimeError", "CUDA error: CUDA-capable device(s) is/are busy or unavailable" + ADVICE),
    "no kernel": ("RuntimeError", "CUDA error: no kernel image is available for execution on the device" + ADVICE),
    "cuBLAS": ("RuntimeError", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    "HIP": ("RuntimeError", "HIP error: an illegal memory access was encountered\nHIP kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect."),
    "memory, by NCCL": ("DistBackendError", CUDA + "Cuda failure 2 'out of memory'"),
    "the fabric of the system, by NCCL": ("DistBackendError", CUDA + "Cuda failure 802 'system not yet initialized'"),
    "shared memory": ("DistBackendError", SYSTEM + "Error while creating shared memory segment /dev/shm/nccl-zTYolS (size 5967872), error: No space left on device (28)"),
    "memory that may not be locked": ("DistBackendError", SYSTEM + "Call to ibv_create_cq failed with error Cannot allocate memory"),
    "files": ("DistBackendError", SYSTEM + "Call to socket failed: Too many open files"),
}  # fmt: skip


def job(texts: dict[int, tuple[str, str]]) -> RankFacts:
    """Eight ranks on four nodes that stand in one reduction, with the words of each."""
    facts = ranks(took_s=9.0, broken="a rank ended")
    for rank, (kind, text) in texts.items():
        stop_at(facts, rank, "reduce", rc=1)
        own = {"rank": rank, "node": facts.nodes[rank // 2]}
        said = " ".join(text.split())[:500]  # as the rank says it
        say(facts, own, "error", 8.0, phase="reduce", kind=kind, text=said, at="all_reduce:1")
        facts.beats[rank] = own | {"say": "beat", "at_s": 8.9, "phase": "reduce"}
    return facts


def told(texts: dict[int, tuple[str, str]]) -> list[tuple[str, tuple[str, ...]]]:
    found = judge_ranks(job(texts), ADDRESSES, Wanted(rdma="none"))
    return [(f.code, f.subject.nodes) for f in found if f.verdict is Verdict.FAIL]


@pytest.mark.parametrize("name", OWN)
def test_an_error_of_a_ranks_own_names_its_node(name: str) -> None:
    texts = dict.fromkeys(range(8), ABOUT_A_PEER["closed, since 2.18"]) | {5: OWN[name]}
    assert told(texts) == [("preflight/rank-error", ("n2",))]


@pytest.mark.parametrize("name", ABOUT_A_PEER)
def test_ranks_that_complain_of_others_accuse_nobody(name: str) -> None:
    assert told(dict.fromkeys(range(8), ABOUT_A_PEER[name])) == [("preflight/collective-failed", ())]


@pytest.mark.parametrize(
    "text",
    [
        REMOTE + "socketProgress: Connection closed by remote peer 10.2.0.2<41234>",
        REMOTE + "socketProgress: Connection closed by remote peer n2.cluster.example<41234>",
        REMOTE + "socketProgressOpt: Call to recv from 10.2.0.2<33759> failed : Connection reset by peer",
        INTERNAL + "Net : Call to recv from 10.2.0.2<58355> failed : Broken pipe",
        "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.2.0.2]:23451",
        SYSTEM + "Connect to 10.2.0.2<56821> failed : Connection refused",
    ],
)
def test_the_node_that_all_others_complain_of_is_named(text: str) -> None:
    texts = dict.fromkeys(range(8), ("DistBackendError", text)) | dict.fromkeys((4, 5), ABOUT_A_PEER["the watchdog"])
    assert told(texts) == [("preflight/collective-failed", ("n2",))]
