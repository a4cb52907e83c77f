"""Who and where a rank is, read before torch is there: its number, its CPUs, its GPU, its interfaces, its settings.

Everything it says is one JSON object a line, with `say`; a long one comes in pieces, `~number i n text`, as srun cuts
lines of more than 1,024 bytes.
"""

# ruff: noqa: PTH118, PTH119, PTH123, PTH207, PTH208

from __future__ import annotations

import contextlib
import fcntl
import glob
import json
import os
import socket
import struct
import sys
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

BEAT_S = 0.5
MAX_LINE = 900
SIOCGIFADDR = 0x8915
ENV_PREFIXES = ("NCCL_", "RCCL_", "CUDA_", "OMPI_", "UCX_", "GLOO_", "TORCH_", "HSA_", "ROCR_", "OMP_", "MKL_", "FI_")
LONGEST_SETTING = 200


def config() -> dict[str, Any]:
    """What the control side wants, from the environment."""
    found: dict[str, Any] = json.loads(os.environ.get("FAIRLEAD_RANKS", "{}"))
    return found


def number(*names: str) -> int:
    """The first of several variables that holds a number; -1 if none does."""
    return next((int(os.environ[n]) for n in names if os.environ.get(n, "").isdigit()), -1)


class Me:
    """This rank, by what started it, and how it speaks."""

    def __init__(self) -> None:
        self.rank = number("RANK", "SLURM_PROCID")
        self.local = number("LOCAL_RANK", "SLURM_LOCALID")
        self.world = number("WORLD_SIZE", "SLURM_NTASKS")
        self.node = os.environ.get("FAIRLEAD_NODE") or os.environ.get("SLURMD_NODENAME") or socket.gethostname()
        self.phase, self.began = "start", time.monotonic()
        self.lock = threading.Lock()
        self.num_long = 0

    def say(self, what: str, **fields: Any) -> None:
        """One line, written whole."""
        line = json.dumps({"say": what, "rank": self.rank, "node": self.node, **fields}, separators=(",", ":"))
        with self.lock:
            if len(line) <= MAX_LINE:
                os.write(1, line.encode() + b"\n")
                return
            self.num_long += 1
            cuts = range(0, len(line), MAX_LINE)
            for i, at in enumerate(cuts):
                os.write(1, f"~{self.num_long} {i} {len(cuts)} {line[at : at + MAX_LINE]}\n".encode())

    def enter(self, phase: str, **fields: Any) -> None:
        """What it is about to do."""
        self.phase, self.began = phase, time.monotonic()
        self.say("phase", phase=phase, **fields)

    def beat(self) -> None:
        """A thread that says again and again that this rank is alive: one that is stopped says nothing."""

        def beats() -> None:
            while True:
                time.sleep(BEAT_S)
                self.say("beat", phase=self.phase, s=round(time.monotonic() - self.began, 2))

        threading.Thread(target=beats, daemon=True).start()


def tell_start(me: Me) -> str:
    """Say who and where this rank is; returns the interface that gloo and NCCL shall use, empty if nobody chose."""
    found = interfaces()
    name, chosen_by = choose_interface(found, me.node)
    gpus = gpus_of_node()
    short = {k: v for k, v in os.environ.items() if len(v) < LONGEST_SETTING}
    me.say(
        "start",
        local_rank=me.local,
        world=me.world,
        host=socket.gethostname(),
        pid=os.getpid(),
        python=sys.version.split()[0],
        executable=sys.executable,
        kernel=os.uname().release,
        cpus=folded(os.sched_getaffinity(0)),
        env={k: v for k, v in short.items() if k.startswith(ENV_PREFIXES)},
        slurm={k: v for k, v in short.items() if k.startswith("SLURM_")},
        nccl_conf=read("/etc/nccl.conf"),
        interface=name,
        interface_by=chosen_by,
        interface_facts=found.get(name.lstrip("=^").split(",")[0], {}),
        gpus=len(gpus),
        gpu=gpu_of_rank(gpus, me.local),
        rdma=rdma_devices(),
    )
    return name


def read(path: str) -> str:
    """A small file; empty where it cannot be read."""
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return ""


def folded(numbers: Iterable[int]) -> str:
    """`0-3,8` for a set of CPUs."""
    runs: list[list[int]] = []
    for n in sorted(numbers):
        if runs and runs[-1][-1] == n - 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def gpus_of_node() -> list[dict[str, Any]]:
    """GPUs in PCI order, as the driver lists them: index, UUID, PCI address, NUMA node, CPUs near it."""
    out: list[dict[str, Any]] = []
    for place in sorted(glob.glob("/proc/driver/nvidia/gpus/*")):
        bdf = os.path.basename(place).lower()
        lines = [line.partition(":") for line in read(place + "/information").splitlines()]
        said = {key.strip(): value.strip() for key, _, value in lines}
        device = "/sys/bus/pci/devices/" + bdf
        out.append({
            "index": len(out), "uuid": said.get("GPU UUID", ""), "pci": bdf, "name": said.get("Model", ""),
            "numa": read(device + "/numa_node"), "cpus": read(device + "/local_cpulist"),
        })  # fmt: skip
    return out


def rdma_devices() -> dict[str, dict[str, str]]:
    """RDMA device -> its NUMA node, and the CPUs near it."""
    out = {}
    for place in sorted(glob.glob("/sys/class/infiniband/*")):
        device = place + "/device"
        out[os.path.basename(place)] = {
            "numa": read(device + "/numa_node"),
            "cpus": read(device + "/local_cpulist"),
        }
    return out


def gpu_of_rank(gpus: list[dict[str, Any]], local: int) -> dict[str, Any]:
    """The GPU that CUDA_VISIBLE_DEVICES and the local rank point at; without a UUID where that is none."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    words = [str(g["index"]) for g in gpus] if visible is None else [w.strip() for w in visible.split(",") if w.strip()]
    word = words[0] if len(words) == 1 else words[local] if 0 <= local < len(words) else ""
    for gpu in gpus:
        if word == str(gpu["index"]) or (len(word) > 7 and str(gpu["uuid"]).startswith(word)):
            return dict(gpu, asked=word)
    return {"asked": word}


def interfaces() -> dict[str, dict[str, Any]]:
    """Name -> addresses, MTU, state: by the kernel's own tables, without a program."""
    out: dict[str, dict[str, Any]] = {}
    for name in sorted(os.listdir("/sys/class/net")):
        base = os.path.join("/sys/class/net", name)
        out[name] = {"mtu": read(base + "/mtu"), "state": read(base + "/operstate"), "addresses": []}
    for line in read("/proc/net/if_inet6").splitlines():
        raw, *_, name = line.split()
        if name in out:
            out[name]["addresses"].append(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(raw)))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for name, facts in out.items():
            with contextlib.suppress(OSError):
                reply = fcntl.ioctl(sock.fileno(), SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                facts["addresses"].append(socket.inet_ntoa(reply[20:24]))
    return out


def choose_interface(found: dict[str, dict[str, Any]], node: str) -> tuple[str, str]:
    """(interface for gloo and NCCL, who chose it): the user's own setting, else the one that has the fabric address."""
    for variable in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        if os.environ.get(variable):
            return os.environ[variable], variable
    address = config().get("addresses", {}).get(node, "")
    for name, facts in found.items():
        if address and address in facts["addresses"]:
            return name, "the fabric address"
    return "", ""
