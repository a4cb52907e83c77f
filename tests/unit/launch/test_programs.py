"""Programs for nodes: joined into one file that any Python 3.9 reads; what a rank says of its place."""

from __future__ import annotations

import ast
import functools
import socket
import sys
from types import SimpleNamespace

import pytest

from fairlead.base.program import Program
from fairlead.launch.job import _LAUNCHER
from fairlead.launch.onnode import me, meet, place
from fairlead.preflight.pairs.drive import AGENT
from fairlead.preflight.ranks.onnode.rank import node_group
from fairlead.preflight.ranks.run import PARTS

RANK = (*_LAUNCHER, *PARTS)


@pytest.mark.parametrize("program", [Program.of(*AGENT), Program.of("r", *RANK)], ids=["agent", "rank"])
def test_a_program_is_one_file_of_old_python_that_needs_nothing_of_ours(program):
    tree = ast.parse(program.source, feature_version=(3, 9))
    names = [
        alias.name if isinstance(n, ast.Import) else n.module
        for n in ast.walk(tree)
        if isinstance(n, (ast.Import, ast.ImportFrom))
        for alias in n.names
    ]
    assert not [name for name in names if name.startswith("fairlead")]
    assert {n.split(".")[0] for n in names} - sys.stdlib_module_names <= {"torch"}


# ---- who a rank is ---------------------------------------------------------------------------------------------------

GPUS = [{"index": i, "uuid": f"GPU-{i}aaaaaaa", "pci": f"000{i}:00:00.0"} for i in range(4)]


@pytest.mark.parametrize(
    ("visible", "local", "index"),
    [(None, 2, 2), ("3,1", 0, 3), ("3,1", 1, 1), ("2", 1, 2), ("GPU-1aaa", 0, 1), ("", 0, None), ("0,1", 2, None)],
)
def test_the_gpu_that_settings_and_local_rank_point_at(monkeypatch, visible, local, index):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert place.gpu_of_rank(GPUS, local).get("index") == index


def test_what_a_jobs_script_exported_for_itself_is_no_rank(monkeypatch):
    """`export RANK=... WORLD_SIZE=$SLURM_NNODES` stands in many batch files, and srun hands it on to every task."""
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "SLURM_PROCID": "3", "SLURM_LOCALID": "1",
                        "FAIRLEAD_FIRST_RANK": "8", "FAIRLEAD_WORLD": "16"}.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    found = me.Me({})
    assert (found.rank, found.local, found.world) == (11, 1, 16)


def test_the_users_choice_of_interface_comes_first(monkeypatch):
    found = {"fab0": {"addresses": ["fd00::1"]}, "eth0": {"addresses": ["10.0.0.1"]}}
    own = {"address": "fd00::1"}
    for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        monkeypatch.delenv(name, raising=False)
    assert place.choose_interface(found, own) == ("fab0", "the fabric address")
    assert place.choose_interface(found, {}) == ("", "")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "eth0")
    assert place.choose_interface(found, own) == ("eth0", "NCCL_SOCKET_IFNAME")


@pytest.mark.parametrize(
    ("variable", "said", "name"),
    [
        ("NCCL_SOCKET_IFNAME", "eth", "eth0"),  # a prefix
        ("NCCL_SOCKET_IFNAME", "^docker0,lo", "eth0"),  # what to leave out
        ("NCCL_SOCKET_IFNAME", "^virbr", "eth0"),  # ... also where there is none such
        ("NCCL_SOCKET_IFNAME", "=ib0", "ib0"),
        ("NCCL_SOCKET_IFNAME", "ens,ib", "ib0"),
        ("NCCL_SOCKET_IFNAME", "bond", "bond"),  # fits nothing
        ("NCCL_SOCKET_IFNAME", "=eth", "=eth"),
        ("GLOO_SOCKET_IFNAME", "eth", "eth"),  # no prefix
        ("GLOO_SOCKET_IFNAME", "ib0,eth0", "eth0"),
    ],
)
def test_a_setting_names_interfaces_as_its_library_reads_it(monkeypatch, variable, said, name):
    found = {
        "docker0": {"addresses": ["172.17.0.1"], "state": "down"},
        "eth0": {"addresses": ["10.0.0.1"], "state": "up"},
        "eth1": {"addresses": [], "state": "down"},
        "ib0": {"addresses": [], "state": "up"},
        "lo": {"addresses": ["127.0.0.1"], "state": "unknown"},
    }
    for other in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        monkeypatch.delenv(other, raising=False)
    monkeypatch.setenv(variable, said)
    assert place.choose_interface(found, {}) == (name, variable)


class _Old:
    """A device as torch 2.1 to 2.8 describes it: no PCI address (torch/csrc/cuda/Module.cpp)."""

    name, total_memory = "NVIDIA A100", 80 << 30


def test_a_torch_that_does_not_say_where_a_device_is_is_no_fault(monkeypatch):
    monkeypatch.setattr(meet.ctypes, "CDLL", lambda _: (_ for _ in ()).throw(OSError("no driver here")))
    assert meet.pci_of(_Old(), 0) == ""
    new = SimpleNamespace(pci_domain_id=1, pci_bus_id=0xB3, pci_device_id=0)
    assert meet.pci_of(new, 0) == "0001:b3:00.0"


def test_what_an_old_torch_does_not_take_is_not_given_to_it():
    def old(backend=None, store=None, rank=-1, world_size=-1, timeout=None): ...

    @functools.wraps(old)
    def logged(*args, **more): ...  # as torch wraps its functions

    def new(backend=None, store=None, device_id=None): ...

    assert [meet.takes(call, "device_id") for call in (old, logged, new)] == [False, False, True]


@pytest.mark.parametrize(
    ("backend", "has_split", "makes"),
    [("nccl", True, [[0, 1], [2, 3]]), ("nccl", False, [2, 3]), ("gloo", True, [2, 3])],  # split_group: since 2.5
)
def test_ranks_of_a_node_form_a_group_in_any_torch(backend, has_split, makes):
    made = []
    dist = SimpleNamespace(get_backend=lambda: backend, new_group=lambda ranks, **_: made.append(ranks))
    if has_split:
        dist.split_group = lambda **said: made.append(said["split_ranks"])
    node_group(dist, [[0, 1], [2, 3]], 1)
    assert made == [makes]


@pytest.mark.parametrize(("numbers", "text"), [({0, 1, 2, 8}, "0-2,8"), ({5}, "5"), (set(), "")])
def test_cpus_are_folded(numbers, text):
    assert place.folded(numbers) == text


def test_where_nobody_says_its_address_the_way_to_rank_0_does():
    found = {"lo": {"addresses": ["127.0.0.1", "::1"]}, "eth0": {"addresses": ["10.0.0.1"]}}
    for host in ("127.0.0.1", "::1"):
        assert place.choose_interface(found, {"host": host}) == ("lo", "the way to rank 0")
    assert place.source_towards("") == ""


def test_rank_0_names_all_that_are_missing_however_many_they_are(monkeypatch):
    """Named in part, they would be the odd ones among nodes that nobody said were there."""
    said, store = [], {}
    monkeypatch.setattr(meet, "LOOK_S", 0.0)
    monkeypatch.setattr(meet, "TELL_S", 0.0)

    def say(what, **fields):
        said.append((what, fields))
        if what == "missing":
            store[meet.ALL_HERE] = "1"

    group = meet.RankGroup.__new__(meet.RankGroup)
    group.me = SimpleNamespace(rank=0, node="n0", world=8192, say=say)
    keys = SimpleNamespace(
        set=store.__setitem__, add=lambda _, num: num, check=lambda names: all(name in store for name in names)
    )
    store[meet.HERE % 5000] = "n625"
    group.wait_for_all(keys)
    assert said == [("here", {}), ("missing", {"num": 8190, "ranks": "1-4999,5001-8191"})]


def test_rank_0_listens_where_it_is_also_if_slurm_put_it_on_another_node(monkeypatch):
    said = []
    monkeypatch.setattr(meet, "source_towards", lambda host: "127.0.0.1" if host == "198.51.100.1" else "")
    group = meet.RankGroup.__new__(meet.RankGroup)
    group.me = SimpleNamespace(config={"host": "198.51.100.1"}, say=lambda what, **fields: said.append((what, fields)))
    group.store = lambda *_, master_listen_fd, **__: socket.close(master_listen_fd)
    group.open_store()
    ((what, fields),) = said
    assert (what, fields["host"]) == ("store", "127.0.0.1")
    assert fields["port"] > 0
    group.me.config["host"] = "198.51.100.2"
    with pytest.raises(me.CannotStart, match=r"cannot listen at 198\.51\.100\.2"):
        group.open_store()
