"""The program of one rank: standard library and torch, piped to a node or to a Slurm task. It says what it sees and does.

Every line on standard output that begins with `{` is a JSON object with `say`; a long one comes in pieces, `~number i n
text`. The control side judges them.

    start     who and where this rank is: its environment, CPUs, interfaces, the GPU it is meant to use
    phase     what it is about to do: import, rendezvous, join, ddp, reduce, split, done
    beat      it is alive (several a second, from a thread): a rank that is stopped says nothing
    joined, ddp, reduced, split, done        results, with times and checks
    error     the exception that ended it

Importing torch costs seconds of CPU and is the same for every rank of a node. Where ranks use CPUs, a child of the first
rank to come imports it once and forks the others' bodies: each task stays the process its scheduler started, hands its
environment, CPUs and standard streams to its body, and ends as that ends. Where there are GPUs every task imports by
itself, as a scheduler may give each its own devices.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import glob
import json
import os
import signal
import socket
import struct
import sys
import threading
import time
import traceback

BEAT_S = 0.5
MAX_LINE = 900
PERIOD = 61  # of the test pattern: prime, so that shifted chunks never look right
FIRST_STEP, GROW = 1 << 16, 4  # below the first step latency rules, and time does not grow with size
ENV_PREFIXES = ("NCCL_", "RCCL_", "CUDA_", "OMPI_", "UCX_", "GLOO_", "TORCH_", "HSA_", "ROCR_", "OMP_", "MKL_", "FI_")
PR_SET_PDEATHSIG = 1
IDLE_S = 2.0

config = json.loads(os.environ.get("FAIRLEAD_RANKS", "{}"))


def number(*names):
    """The first of several variables that holds a number; -1 if none does."""
    return next((int(os.environ[n]) for n in names if os.environ.get(n, "").isdigit()), -1)


class Me:
    """Who this rank is, by what started it."""

    def __init__(self):
        self.rank = number("RANK", "SLURM_PROCID")
        self.local = number("LOCAL_RANK", "SLURM_LOCALID")
        self.world = number("WORLD_SIZE", "SLURM_NTASKS")
        self.node = os.environ.get("FAIRLEAD_NODE") or os.environ.get("SLURMD_NODENAME") or socket.gethostname()
        self.lock = threading.Lock()
        self.num_long = 0
        self.phase = "start"
        self.began = time.monotonic()

    def say(self, what, **fields):
        """One line, written whole; in pieces where it is long, as srun cuts lines of more than 1,024 bytes."""
        line = json.dumps({"say": what, "rank": self.rank, "node": self.node, **fields}, separators=(",", ":"))
        with self.lock:
            if len(line) <= MAX_LINE:
                os.write(1, line.encode() + b"\n")
                return
            self.num_long += 1
            cuts = range(0, len(line), MAX_LINE)
            for i, at in enumerate(cuts):
                piece = "~%d %d %d %s\n" % (self.num_long, i, len(cuts), line[at : at + MAX_LINE])
                os.write(1, piece.encode())

    def enter(self, phase, **fields):
        self.phase, self.began = phase, time.monotonic()
        self.say("phase", phase=phase, **fields)

    def beats(self):
        def beat():
            while True:
                time.sleep(BEAT_S)
                self.say("beat", phase=self.phase, s=round(time.monotonic() - self.began, 2))

        threading.Thread(target=beat, daemon=True).start()


# ---- what a rank can tell before torch -------------------------------------------------------------------------------


def read(path, default=""):
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return default


def folded(numbers):
    """`0-3,8` for a set of CPUs."""
    out, run = [], []
    for n in [*sorted(numbers), None]:
        if run and (n is None or n != run[-1] + 1):
            out.append("%d" % run[0] if len(run) == 1 else "%d-%d" % (run[0], run[-1]))
            run = []
        if n is not None:
            run.append(n)
    return ",".join(out)


def gpus_of_node():
    """GPUs in PCI order, as the driver lists them: index, UUID, PCI address, NUMA node, CPUs near it."""
    out = []
    for place in sorted(glob.glob("/proc/driver/nvidia/gpus/*")):
        bdf = os.path.basename(place)
        info = dict(
            (key.strip(), value.strip())
            for key, _, value in (line.partition(":") for line in read(place + "/information").splitlines())
        )
        device = "/sys/bus/pci/devices/" + bdf.lower()
        out.append(
            {
                "index": len(out),
                "uuid": info.get("GPU UUID", ""),
                "pci": bdf.lower(),
                "name": info.get("Model", ""),
                "numa": read(device + "/numa_node"),
                "cpus": read(device + "/local_cpulist"),
            }
        )
    return out


def gpu_of_rank(gpus, local):
    """The GPU that CUDA_VISIBLE_DEVICES and the local rank point at; {} where that is none."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    words = [str(g["index"]) for g in gpus] if visible is None else [w.strip() for w in visible.split(",") if w.strip()]
    if not words:
        return {}
    word = words[0] if len(words) == 1 else words[local] if local < len(words) else ""
    for gpu in gpus:
        if word == str(gpu["index"]) or (len(word) > 7 and gpu["uuid"].startswith(word)):
            return dict(gpu, asked=word)
    return {"asked": word}


def interfaces():
    """Name -> addresses, MTU, state: by the kernel's own tables, without a program."""
    out = {}
    for name in sorted(os.listdir("/sys/class/net")):
        base = "/sys/class/net/" + name
        out[name] = {"mtu": read(base + "/mtu"), "state": read(base + "/operstate"), "addresses": []}
    for line in read("/proc/net/if_inet6").splitlines():
        raw, *_, name = line.split()
        if name in out:
            out[name]["addresses"].append(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(raw)))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for name in out:
            with contextlib.suppress(OSError):
                import fcntl

                reply = fcntl.ioctl(sock.fileno(), 0x8915, struct.pack("256s", name.encode()[:15]))  # SIOCGIFADDR
                out[name]["addresses"].append(socket.inet_ntoa(reply[20:24]))
    return out


def choose_interface(found, me):
    """(interface for gloo and NCCL, who chose it): the user's own setting, else the one that has the fabric address."""
    for variable in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        if os.environ.get(variable):
            return os.environ[variable], variable
    address = config.get("addresses", {}).get(me.node, "")
    for name, facts in found.items():
        if address in facts["addresses"]:
            return name, "the fabric address"
    return "", ""


def tell_start(me):
    found = interfaces()
    name, chosen_by = choose_interface(found, me)
    gpus = gpus_of_node()
    env = {k: v for k, v in os.environ.items() if k.startswith(ENV_PREFIXES)}
    slurm = {k: v for k, v in os.environ.items() if k.startswith("SLURM_") and len(v) < 200}
    me.say(
        "start",
        local_rank=me.local,
        world=me.world,
        host=socket.gethostname(),
        pid=os.getpid(),
        python=sys.version.split()[0],
        executable=sys.executable,
        cpus=folded(os.sched_getaffinity(0)),
        env=env,
        slurm=slurm,
        nccl_conf=read("/etc/nccl.conf"),
        interface=name,
        interface_by=chosen_by,
        interface_facts=found.get(name.lstrip("=^").split(",")[0], {}),
        gpus=len(gpus),
        gpu=gpu_of_rank(gpus, me.local),
        kernel=os.uname().release,
    )
    return name


# ---- one import for all ranks of a node ------------------------------------------------------------------------------


def has_device():
    """Whether a GPU could be used from here: a driver library that programs load, or AMD's device file."""
    if os.path.exists("/dev/kfd"):
        return True
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def import_torch():
    """Import with the garbage collector off: it finds nothing among modules, and takes a tenth of the time."""
    import gc

    gc.disable()
    import torch
    import torch._dynamo.utils  # what DistributedDataParallel would import when the first one is made
    import torch.distributed

    gc.enable()
    gc.freeze()
    return torch


def die_with_parent():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def shared_import(me, body):
    """Run `body` in a process that did not have to import torch itself; returns its exit status (negative: a signal)."""
    name = "\0fairlead-ranks-" + config.get("run", "") + "-" + me.node
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with contextlib.suppress(OSError):
        listener.bind(name)
        listener.listen(1024)
        if os.fork() == 0:
            os.setsid()  # it serves the other ranks of the node too, and must not end with the one that came first
            importer(listener, body)
    watch_input(me)
    listener.close()
    link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    link.connect(name)
    job = {"env": dict(os.environ), "cpus": sorted(os.sched_getaffinity(0)), "cwd": os.getcwd()}
    fds = array.array("i", [0, 1, 2])
    link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    link.sendmsg([json.dumps(job).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
    answer = link.recv(64)  # empty: the importer is gone
    return int(answer) if answer else 70


def importer(listener, body):
    """Import torch, then fork a body for each rank that asks, and tell each how its body ended.

    Ends when every rank of the node has been served, or when none is left and none comes; with a task goes its body.
    """
    import_torch()
    links, served, idle_since = {}, 0, time.monotonic()
    while links or (served < config["per_node"] and time.monotonic() - idle_since < IDLE_S):
        listener.settimeout(0.02 if links else 0.2)
        with contextlib.suppress(socket.timeout):
            link, _ = listener.accept()
            message, ancillary, _, _ = link.recvmsg(1 << 20, socket.CMSG_SPACE(12))
            if message:
                fds = array.array("i", ancillary[0][2])
                pid = os.fork()
                if pid == 0:
                    listener.close()
                    become(json.loads(message), fds, body)
                for fd in fds:
                    os.close(fd)
                links[pid], served = link, served + 1
        for pid, link in list(links.items()):
            link.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                if not link.recv(1):
                    with contextlib.suppress(OSError):
                        os.kill(pid, signal.SIGKILL)
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                rc = os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)
                with contextlib.suppress(OSError):
                    link.send(b"%d" % rc)
                del links[pid]
                idle_since = time.monotonic()
    os._exit(0)


def become(job, fds, body):
    """In a fresh fork: take over the task's streams, environment and CPUs, and never return."""
    die_with_parent()
    status = 1
    try:
        for target, fd in enumerate(fds):
            os.dup2(fd, target)
        os.environ.clear()
        os.environ.update(job["env"])
        os.sched_setaffinity(0, job["cpus"])
        with contextlib.suppress(OSError):
            os.chdir(job["cwd"])
        status = body(Me())
    finally:
        os._exit(status)


# ---- the body --------------------------------------------------------------------------------------------------------


def body(me):
    """Join the group and do the collectives; returns the exit status."""
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as file:
        file.write("fl-rank-%d" % me.rank)
    me.beats()
    try:
        collectives(me)
    except BaseException as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        text = " ".join(str(error).split())[:500]
        me.say("error", phase=me.phase, kind=type(error).__name__, text=text, at="%s:%s" % (last.name, last.lineno))
        return 1
    me.enter("done")
    return 0


def collectives(me):
    from datetime import timedelta

    torch = import_torch()
    dist = torch.distributed
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(me.local % torch.cuda.device_count())  # before the group is made, which uses it
    else:
        torch.set_num_threads(1)
    device = torch.device("cuda" if cuda else "cpu")
    me.say("torch", **versions(torch, me))
    me.enter("rendezvous")
    limit = timedelta(seconds=config["limit_s"])
    store = dist.TCPStore(config["host"], config["port"], me.world, me.rank == 0, timeout=limit)
    me.enter("join")
    started = time.perf_counter()
    dist.init_process_group(
        "nccl" if cuda else "gloo", store=store, rank=me.rank, world_size=me.world, timeout=limit,
        device_id=device_of(torch, cuda),
    )  # fmt: skip
    dist.all_reduce(torch.ones(1, device=device))
    sync(torch, cuda)
    me.say("joined", s=round(time.perf_counter() - started, 4))
    me.enter("ddp")
    ddp_step(me, torch, dist, device, cuda)
    me.enter("reduce")
    reduces(me, torch, dist, device, cuda)
    me.enter("split")
    split(me, torch, dist, device, cuda)
    dist.barrier()
    dist.destroy_process_group()


def device_of(torch, cuda):
    return torch.device("cuda", torch.cuda.current_device()) if cuda else None


def sync(torch, cuda):
    if cuda:
        torch.cuda.synchronize()


def versions(torch, me):
    out = {"torch": torch.__version__, "cuda": torch.version.cuda or "", "hip": getattr(torch.version, "hip", None) or ""}
    if torch.cuda.is_available():
        mine = torch.cuda.current_device()
        props = torch.cuda.get_device_properties(mine)
        out["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        out["device"] = {
            "name": props.name,
            "memory_bytes": props.total_memory,
            "uuid": str(getattr(props, "uuid", "")),
            "pci": "%04x:%02x:%02x.0" % (props.pci_domain_id, props.pci_bus_id, props.pci_device_id),
        }
        count = torch.cuda.device_count()
        if count > 1:
            out["peer_access"] = torch.cuda.can_device_access_peer(mine, (mine + 1) % count)
    return out


def ddp_step(me, torch, dist, device, cuda):
    """One step of a small model under DistributedDataParallel; its gradient must be the mean of all ranks' own."""
    started = time.perf_counter()
    torch.manual_seed(1)
    model = torch.nn.Linear(10, 10).to(device)
    own = torch.nn.Linear(10, 10).to(device)
    own.load_state_dict(model.state_dict())
    wrapped = torch.nn.parallel.DistributedDataParallel(model, device_ids=[device_of(torch, cuda)] if cuda else None)
    torch.manual_seed(100 + me.rank)
    x = torch.randn(20, 10, device=device)
    loss = wrapped(x).square().mean()
    loss.backward()
    own(x).square().mean().backward()
    mean = own.weight.grad.clone()
    dist.all_reduce(mean)
    mean /= me.world
    same = bool(torch.allclose(model.weight.grad, mean, rtol=1e-4, atol=1e-6))
    total = loss.detach().clone()
    dist.all_reduce(total)
    sync(torch, cuda)
    me.say("ddp", s=round(time.perf_counter() - started, 4), loss=float(total) / me.world, gradient_is_mean=same)


def reduces(me, torch, dist, device, cuda):
    """All-reduce from a few bytes upwards; each checked element by element, the last one timed.

    Rank r contributes (i + 31 r) mod 61 at place i: whole numbers, different at every rank, whose sum over up to 8,192
    ranks is exact in 32-bit floats. A size is left out if, by the size before it, it would take longer than allowed.
    """
    wrong = {}
    sums = [sum((k + 31 * r) % PERIOD for r in range(me.world)) for k in range(PERIOD)]
    left_s = config["reduce_s"]
    largest = max(config["sizes"])
    steps = sorted({min(s, largest) for s in config["sizes"]} | {min(FIRST_STEP * GROW**k, largest) for k in range(16)})
    took_s = 0.0
    for i, num_bytes in enumerate(steps):
        num = max(1, num_bytes // 4)
        pattern = torch.arange(PERIOD, device=device, dtype=torch.float32)
        mine = ((pattern + 31 * me.rank) % PERIOD).repeat(-(-num // PERIOD))[:num]
        times = []
        growth = max(1, steps[i + 1] / max(num_bytes, FIRST_STEP)) if i + 1 < len(steps) else 0
        for again in range(3):
            data = mine.clone()
            sync(torch, cuda)
            me.say("phase", phase="reduce", bytes=num_bytes, turn=again)
            started = time.perf_counter()
            dist.all_reduce(data)
            sync(torch, cuda)
            times.append(time.perf_counter() - started)
            wrong = check(torch, data, sums, num) if again == 0 else wrong
            # what is decided here must be decided alike everywhere: by the slowest rank's time
            slowest = torch.tensor([times[-1]], device=device)
            dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
            took_s = float(slowest)
            left_s -= took_s
            if took_s > left_s:
                break
        me.say("reduced", bytes=num * 4, s=[round(t, 6) for t in times], **wrong)
        if not growth or took_s * growth > left_s:
            break


def check(torch, data, sums, num):
    """How many elements differ from the exact sum, and the first of them."""
    want = torch.tensor(sums, device=data.device, dtype=torch.float32).repeat(-(-num // PERIOD))[:num]
    wrong = (data != want).nonzero()
    if not len(wrong):
        return {"wrong": 0}
    at = int(wrong[0])
    return {"wrong": len(wrong), "first": at, "got": float(data[at]), "want": float(want[at])}


def split(me, torch, dist, device, cuda):
    """Rounds of the same arithmetic and a one-element all-reduce: who computes longest, and who waits."""
    size = 2048 if cuda else 192
    a = torch.randn(size, size, device=device)
    compute, wait = [], []
    for _ in range(config["split_rounds"]):
        sync(torch, cuda)
        t0 = time.perf_counter()
        for _ in range(8):
            a = (a @ a).clamp_(-1, 1)
        sync(torch, cuda)
        t1 = time.perf_counter()
        dist.all_reduce(torch.ones(1, device=device))
        sync(torch, cuda)
        compute.append(round(t1 - t0, 6))
        wait.append(round(time.perf_counter() - t1, 6))
    me.say("split", compute_s=compute, wait_s=wait)


def watch_input(me):
    """End when standard input does: whoever started this rank is gone."""

    def watch():
        while os.read(0, 4096):
            pass
        os._exit(75)

    threading.Thread(target=watch, daemon=True).start()


def main():
    me = Me()
    interface = tell_start(me)
    if interface:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", interface)
    # NCCL says on standard error which network it chose: the proof that it was RDMA
    os.environ.setdefault("NCCL_DEBUG", "INFO")
    os.environ.setdefault("NCCL_DEBUG_SUBSYS", "INIT,NET")
    os.environ.setdefault("NCCL_DEBUG_FILE", "/dev/stderr")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if me.rank < 0 or me.world < 1:
        me.say("error", phase="start", kind="NoRank", text="neither RANK nor SLURM_PROCID is set", at="")
        return 1
    me.enter("import")
    if has_device():
        watch_input(me)
        return body(me)
    rc = shared_import(me, body)
    if rc < 0:  # end as the body did
        signal.signal(-rc, signal.SIG_DFL)
        os.kill(os.getpid(), -rc)
        time.sleep(1)
    return rc


if __name__ == "__main__":
    sys.stdout.flush()
    os._exit(main())
