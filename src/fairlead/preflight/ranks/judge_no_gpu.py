"""Why a rank that should have a GPU has none, and what to do about it. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from fairlead.base.units import counted
from fairlead.preflight.ranks.said import Heard, Torch
from fairlead.preflight.ranks.wanted import Wanted
from fairlead.records.finding import Evidence, Finding, Subject, node
from fairlead.records.verdict import Verdict

EMPTY = ("", "-1", "none", "void", "NoDevFiles")
"""What visible devices begin with when there are none (CUDA: -1 and everything behind it; Slurm: NoDevFiles)."""


@dataclass(frozen=True, slots=True)
class Cause:
    """Why torch reaches no GPU, and the next thing to do."""

    name: str
    says: str
    remedy: str


_REFUSALS = {
    "Error 802": "systemctl status nvidia-fabricmanager, of the driver's own version; on a GB200 or GB300 nvidia-imex "
    "and `nvidia-smi -q`, Fabric: State",
    "Error 803": "the libcuda that torch loads is not the driver's: look for a compat folder in LD_LIBRARY_PATH and "
    "for a driver that was updated without a reboot; ldconfig -p | grep libcuda",
    "Error 804": "this GPU takes no newer CUDA than its driver's: take cuda-compat out of LD_LIBRARY_PATH, or update "
    "the driver",
    "Error 101": "CUDA_VISIBLE_DEVICES names a GPU that this process does not have: compare it with nvidia-smi -L",
    "Error 46": "another process holds this GPU alone: nvidia-smi -q -d COMPUTE, nvidia-smi --query-compute-apps=pid",
    "unknown error": "lsmod | grep nvidia_uvm, ls -l /dev/nvidia-uvm (nvidia-modprobe -u); then dmesg -T | grep Xid",
}
"""What torch says when CUDA refuses, and what to look at: CUDA Runtime API, cudaError_t. The first that fits."""


def without_gpu(heard: Heard) -> dict[int, Cause]:
    """Rank -> why it reaches no GPU. Ranks of older programs, which did not say, are left out."""
    return {rank: why_none(said) for rank, said in sorted(heard.torch.items()) if said.num_devices == 0}


def why_none(said: Torch) -> Cause:
    """The first of the causes that fits what the rank read."""
    built = said.cuda or said.hip
    for name, value in said.visible.items():
        if value.partition(",")[0].strip() in EMPTY and name != "NVIDIA_VISIBLE_DEVICES":
            shown = value.strip() or "empty"
            return Cause(
                "hidden",
                f"{name} is {shown}, which hides every GPU from it",
                f"unset {name} in the job's script and in profiles; with Slurm ask for GPUs: --gres=gpu:N",
            )
    if not built:
        return Cause(
            "cpu-build",
            f"its torch ({said.torch}) is built without CUDA and without ROCm",
            "install the GPU build in the Python that [[pool]] names: fairlead exec -- PYTHON -m pip show torch",
        )
    if said.device_files == 0:
        loaded = f", though the driver {said.driver} is loaded" if said.driver else ", and no GPU driver is loaded"
        return Cause(
            "no-device-files",
            f"no device file of a GPU is to be seen from it{loaded}",
            "in a container give it the GPUs: enroot's nvidia hook, docker --gpus all, apptainer --nv or --rocm"
            if said.driver
            else "load the driver: modprobe nvidia (amdgpu), then look at dmesg",
        )
    if said.device_files and said.unreadable_files >= said.device_files:
        return Cause(
            "no-permission",
            f"it may open none of the {said.device_files} device files of GPUs",
            "ask Slurm for GPUs (--gres=gpu:N); without Slurm look at the owner and mode of /dev/nvidia*, /dev/dri",
        )
    if said.cuda and said.driver_cuda and _version(said.driver_cuda)[0] < _version(said.cuda)[0]:
        return Cause(
            "old-driver",
            f"the GPU driver ({said.driver}) supports CUDA {said.driver_cuda}, and its torch is built for {said.cuda}",
            "update the driver, or install the torch build for the driver's CUDA",
        )
    if said.why_not:
        remedy = next(
            (next_ for word, next_ in _REFUSALS.items() if word in said.why_not), "nvidia-smi (rocm-smi); dmesg -T"
        )
        _, number, rest = said.why_not.rpartition("Error ")  # the error's own words stand behind torch's
        shown = number + rest if number and rest[:1].isdigit() else said.why_not
        return Cause("refused", f"torch reaches no GPU: {shown[:160]}", remedy)
    return Cause("unknown", "torch reaches no GPU, and does not say why", "nvidia-smi (rocm-smi); dmesg -T")


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(p) for p in text.split(".") if p.isdigit()) or (0,)


def judge_no_gpu(heard: Heard, wanted: Wanted) -> Iterator[Finding]:
    """Ranks that should have a GPU and have none. The same on every rank is the job's software, and no node's fault."""
    if wanted.device == "cpu":
        return
    found = {r: cause for r, cause in without_gpu(heard).items() if wanted.gpus.get(heard.node_of(r), 0) > 0}
    if wanted.device == "gpu":
        found = without_gpu(heard)
    if not found:
        return
    causes = Counter(cause.name for cause in found.values())
    if len(found) == len(heard.torch) and len(causes) == 1 and len(heard.facts.nodes) > 1:
        cause, rank = next(iter(found.values())), min(found)
        text = f"none of the {len(found)} ranks has a GPU: {cause.says}"
        yield _no_gpu(Subject(kind="job"), text, cause, heard.torch[rank], sorted(found))
        return
    by_node: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for rank, cause in found.items():
        by_node[heard.node_of(rank), cause.name].append(rank)
    for (name, _), ranks in sorted(by_node.items()):
        cause = found[ranks[0]]
        whole = len(ranks) == heard.facts.per_node
        subject = (
            node(name) if whole or len(ranks) > 1 else Subject(kind="rank", nodes=(name,), name=f"rank {ranks[0]}")
        )
        which = f"{counted(len(ranks), 'rank')} of {heard.facts.per_node} on it {'has' if len(ranks) == 1 else 'have'}"
        text = f"{which if subject.kind == 'node' else 'has'} no GPU: {cause.says}"
        yield _no_gpu(subject, text, cause, heard.torch[ranks[0]], ranks)


def _no_gpu(subject: Subject, message: str, cause: Cause, said: Torch, ranks: list[int]) -> Finding:
    read = {
        "torch": f"{said.torch}, CUDA {said.cuda or 'none'}, HIP {said.hip or 'none'}",
        "driver": f"{said.driver or 'none'}, CUDA {said.driver_cuda or 'unknown'}",
        "device files": f"{said.device_files}, of them {said.unreadable_files} not to be opened",
        **{name: value or "(empty)" for name, value in said.visible.items()},
    }
    return Finding(
        code="preflight/no-gpu",
        verdict=Verdict.FAIL,
        subject=subject,
        message=message,
        evidence=tuple(Evidence(f"{key} of rank {said.rank}", value) for key, value in read.items())[:5],
        remedy=cause.remedy,
        data={"cause": cause.name, "ranks": ranks, "why_not": said.why_not},
    )
