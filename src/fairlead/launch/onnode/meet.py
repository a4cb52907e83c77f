"""A body meets the others: its device, the rendezvous store, the process group. For the body of any stage.

    group = RankGroup(me)      # takes its GPU, says what torch is
    group.join()           # returns when every rank is there and a first all-reduce has gone through all of them
    group.torch, group.dist, group.device
    group.leave()

Rank 0 opens the store at its own address alone and says its port; the control side tells the others. Each rank writes
its number into the store, so rank 0 can name those that are not there: one that is silent and one that cannot reach the
store look alike to everybody else.
"""

from __future__ import annotations

import contextlib
import ctypes
import inspect
import socket
import time
from datetime import timedelta

from fairlead.launch.onnode.me import CannotStart, Me
from fairlead.launch.onnode.place import folded, source_towards
from fairlead.launch.onnode.share import import_torch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

HERE, NUM_HERE, ALL_HERE = "fairlead/rank/%d", "fairlead/num", "fairlead/all"
LOOK_S, TELL_S = 0.02, 1.0
"""How often rank 0 looks whether all are there, and how often, at most, it names those that are not."""


def pci_of(props: Any, number: int) -> str:
    """PCI address of a device, by its number in CUDA: the driver says it where torch does not yet. Empty: nobody."""
    if hasattr(props, "pci_bus_id"):
        return f"{props.pci_domain_id:04x}:{props.pci_bus_id:02x}:{props.pci_device_id:02x}.0"
    with contextlib.suppress(OSError, AttributeError):
        said = ctypes.create_string_buffer(32)
        if ctypes.CDLL("libcuda.so.1").cuDeviceGetPCIBusId(said, len(said), number) == 0:
            return said.value.decode().lower()
    return ""


def takes(call: Callable[..., Any], name: str) -> bool:
    """Whether a function of this torch has a parameter."""
    return name in inspect.signature(call).parameters


def num_devices(torch: Any) -> dict[str, Any]:
    """How many devices torch reaches."""
    return {"num_devices": torch.cuda.device_count() if torch.cuda.is_available() else 0}


class RankGroup:
    """What a rank has of torch, and its way into the process group."""

    def __init__(self, me: Me, reach: Callable[[Any], dict[str, Any]] | None = None) -> None:
        """Raises CannotStart where torch and the node do not fit what was asked for.

        `reach` says of torch what devices it reaches (`num_devices`) and, where it reaches none, `why_not`.
        """
        self.me = me
        self.torch = torch = import_torch()
        self.dist = torch.distributed
        asked = me.config.get("device", "any")
        facts: dict[str, Any] = {"num_devices": 0} if asked == "cpu" else (reach or num_devices)(torch)
        self.cuda = bool(facts["num_devices"])
        if self.cuda:  # before the group is made, which uses it
            torch.cuda.set_device(me.local % torch.cuda.device_count())
            self.device = torch.device("cuda", torch.cuda.current_device())
        else:
            torch.set_num_threads(1)
            self.device = torch.device("cpu")
        me.say("torch", **self.versions(), **facts)
        if asked == "gpu" and not self.cuda:
            why = str(facts.get("why_not") or f"torch, built for {self.built_for}, reaches no GPU")
            raise CannotStart("no-device", why)
        self.backend = self.choose_backend(me.config.get("backend", "auto"))

    @property
    def built_for(self) -> str:
        """What this torch can use, in words."""
        version = self.torch.version
        if getattr(version, "hip", None):
            return f"ROCm {version.hip}"
        return f"CUDA {version.cuda}" if version.cuda else "CPUs alone"

    def choose_backend(self, asked: str) -> str:
        """The backend's name in torch: the one asked for, or what fits the device."""
        if asked == "gloo" or (asked == "auto" and not self.cuda):
            return "gloo"
        if not self.cuda:
            raise CannotStart("no-backend", f"{asked} needs a GPU; torch, built for {self.built_for}, reaches none")
        if asked == "rccl" and not getattr(self.torch.version, "hip", None):
            raise CannotStart("no-backend", f"rccl needs a torch for ROCm; this one is built for {self.built_for}")
        if not self.dist.is_nccl_available():
            raise CannotStart("no-backend", f"{asked} is not in this torch, which is built for {self.built_for}")
        return "nccl"

    def versions(self) -> dict[str, Any]:
        """Versions, and the device as CUDA itself names it."""
        torch = self.torch
        out: dict[str, Any] = {
            "torch": torch.__version__,
            "cuda": torch.version.cuda or "",
            "hip": getattr(torch.version, "hip", None) or "",
        }
        if not self.cuda:
            return out
        mine, num = torch.cuda.current_device(), torch.cuda.device_count()
        props = torch.cuda.get_device_properties(mine)
        out["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        out["device"] = {
            "name": props.name,
            "memory_bytes": props.total_memory,
            "uuid": str(getattr(props, "uuid", "")),
            "pci": pci_of(props, mine),
        }
        if num > 1:
            out["peer_access"] = bool(torch.cuda.can_device_access_peer(mine, (mine + 1) % num))
        return out

    def join(self) -> None:
        """Meet all others in the store, make the process group, and see one all-reduce through it."""
        me, dist = self.me, self.dist
        me.enter("rendezvous")
        store = self.open_store() if me.rank == 0 else self.reach_store()
        self.wait_for_all(store)
        me.enter("join")
        # the group is then bound to its device, and can be split; torch before 2.3 has no such parameter
        bound = {"device_id": self.device} if self.cuda and takes(dist.init_process_group, "device_id") else {}
        started = time.perf_counter()
        dist.init_process_group(
            self.backend,
            store=store,
            rank=me.rank,
            world_size=me.world,
            timeout=timedelta(seconds=me.config["timeout_s"]),
            **bound,
        )
        dist.all_reduce(self.torch.ones(1, device=self.device))
        self.sync()
        me.say("joined", s=round(time.perf_counter() - started, 4), backend=self.backend)

    def leave(self) -> None:
        """The last one out: nobody is left waiting for a store that has gone."""
        self.dist.barrier()
        if self.backend != "gloo":  # whose sockets end with the process, at once; closed one by one they take longer
            self.dist.destroy_process_group()

    def sync(self) -> None:
        """Wait for the GPU."""
        if self.cuda:
            self.torch.cuda.synchronize()

    def open_store(self) -> Any:
        """Rank 0: at its own address alone, at a port that is free there.

        A scheduler that numbers nodes in another order puts rank 0 elsewhere: then at that node's address, by which it
        reaches the other.
        """
        me, host = self.me, self.me.config["host"]
        sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        try:
            try:
                sock.bind((host, me.config.get("port", 0)))
            except OSError:
                host = source_towards(host)
                if not host:
                    raise
                sock.bind((host, me.config.get("port", 0)))
        except OSError as error:
            sock.close()
            text = f"rank 0 cannot listen at {me.config['host']}: {error.strerror}"
            raise CannotStart("no-address", text) from None
        port = sock.getsockname()[1]
        store = self.store(host, port, master_listen_fd=sock.detach(), is_master=True)
        me.say("store", host=host, port=port)
        return store

    def reach_store(self) -> Any:
        """Another rank: where the control side says it is."""
        found = self.me.hear("store", self.me.config["timeout_s"])
        if found is None:
            raise TimeoutError("nobody said where the rendezvous is")
        return self.store(found.get("host") or self.me.config["host"], found["port"])

    def store(self, host: str, port: int, **more: Any) -> Any:
        """The kind torch has, which then carries the process group's addresses, too."""
        me = self.me
        limit = timedelta(seconds=me.config["timeout_s"])
        return self.dist.TCPStore(host, port, timeout=limit, wait_for_workers=False, **more)

    def wait_for_all(self, store: Any) -> None:
        """Be there, and wait for the others; rank 0 names those that are not."""
        me = self.me
        store.set(HERE % me.rank, me.node)
        me.say("here")
        if store.add(NUM_HERE, 1) == me.world:
            store.set(ALL_HERE, "1")
        if me.rank:
            store.wait([ALL_HERE], timedelta(seconds=me.config["timeout_s"]))
            return
        missing = set(range(me.world))
        told, tell_at = me.world, time.monotonic() + TELL_S
        while not store.check([ALL_HERE]):
            if time.monotonic() > tell_at:
                missing = {rank for rank in missing if not store.check([HERE % rank])}
                if missing and len(missing) != told:
                    told = len(missing)
                    me.say("missing", num=told, ranks=folded(missing))
                tell_at = time.monotonic() + TELL_S
            time.sleep(LOOK_S)
