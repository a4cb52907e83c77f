"""Where a rank is, read before torch is there: its CPUs, its GPU, its interfaces, its settings."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import socket
import struct
import sys

from fairlead.launch.onnode.me import Me

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

SIOCGIFADDR = 0x8915
ENV_PREFIXES = ("NCCL_", "RCCL_", "CUDA_", "OMPI_", "UCX_", "GLOO_", "TORCH_", "HSA_", "ROCR_", "OMP_", "MKL_", "FI_")
LONGEST_SETTING = 200


def tell_start(me: Me) -> str:
    """Say who and where this rank is; returns the interface that gloo and NCCL shall use, empty if nobody chose."""
    found = interfaces()
    name, chosen_by = choose_interface(found, me.config)
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
        nccl_conf=settings_file("/etc/nccl.conf"),
        interface=name,
        interface_by=chosen_by,
        interface_facts=found.get(name, {}),
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


def settings_file(path: str) -> str | None:
    """A file that need not be there: its text, empty where there is none, None where it cannot be read."""
    try:
        with open(path) as file:
            return file.read().strip()
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except (OSError, ValueError):
        return None


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


def choose_interface(found: dict[str, dict[str, Any]], config: dict[str, Any]) -> tuple[str, str]:
    """(interface for gloo and NCCL, who chose it): the user's own setting, else the one by which rank 0 is reached.

    A setting that fits none of the node's interfaces stands for itself.
    """
    towards = source_towards(config.get("host", ""))
    for variable, fits in (("NCCL_SOCKET_IFNAME", fits_nccl), ("GLOO_SOCKET_IFNAME", fits_gloo)):
        said = os.environ.get(variable)
        if said:
            fitting = [name for name in found if fits(said, name)]
            return max(fitting, key=lambda name: likely(name, found[name], towards), default=said), variable
    for address, by in ((config.get("address", ""), "the fabric address"), (towards, "the way to rank 0")):
        for name, facts in found.items():
            if address and address in facts["addresses"]:
                return name, by
    return "", ""


def fits_nccl(said: str, name: str) -> bool:
    """Whether NCCL_SOCKET_IFNAME takes an interface: prefixes; behind `=` whole names, behind `^` those to leave out
    (NCCL user guide, environment variables).

    >>> [fits_nccl(said, "eth0") for said in ("eth", "=eth", "ib,eth0", "^docker,lo", "^=eth0")]
    [True, False, True, True, False]
    """
    is_not, said = said.startswith("^"), said.removeprefix("^")
    is_exact, said = said.startswith("="), said.removeprefix("=")
    words = [word.split(":")[0] for word in said.split(",") if word]
    return any(name == word if is_exact else name.startswith(word) for word in words) != is_not


def fits_gloo(said: str, name: str) -> bool:
    """Whether GLOO_SOCKET_IFNAME takes an interface: whole names."""
    return name in said.split(",")


def likely(name: str, facts: dict[str, Any], towards: str) -> tuple[bool, ...]:
    """Of several interfaces that fit, the library takes one that is up and reaches others: the largest of these."""
    return (
        towards in facts["addresses"] if towards else False,
        name != "lo" and bool(facts["addresses"]) and facts.get("state") != "down",
        bool(facts["addresses"]),
    )


def source_towards(host: str) -> str:
    """The address of this node from which the kernel would send to `host`; empty where it knows no way."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    if not host:
        return ""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect((host, 9))  # sends nothing: it only makes the kernel choose
            return str(sock.getsockname()[0])
    except OSError:
        return ""
