"""The network that NCCL or RCCL chose: judged for each rank and each rail by the library's own words. Pure.

A list of ports says what the library could use, the `via NET/...` lines what it does use: on Azure's ND sizes the list
usually ends in the accelerated Ethernet port, which no channel then takes, and that is well.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping

from fairlead.base.nodeset import fold
from fairlead.base.units import counted
from fairlead.preflight.ranks.nccl import Network, parse
from fairlead.preflight.ranks.said import Heard
from fairlead.preflight.ranks.wanted import Wanted, is_accelnet
from fairlead.records.finding import Evidence, Finding, Subject, node
from fairlead.records.verdict import Verdict

CODE = "preflight/transport"
_LAYER = {"infiniband": "IB", "ethernet": "RoCE"}


def networks(heard: Heard) -> dict[int, Network]:
    """What each rank's library said, of ranks that have one. Thousands of ranks say a few things: each is read once."""
    ranks = {r for r, said in heard.torch.items() if said.nccl} | heard.nccl.keys()
    known: dict[tuple[str, ...], Network] = {}
    out = {}
    for rank in sorted(ranks):
        lines = tuple(heard.nccl.get(rank, ()))
        out[rank] = known.get(lines) or known.setdefault(lines, parse(lines))
    return out


def is_within_nvlink(said: Iterable[Network]) -> bool:
    """Whether a job of several nodes talks over NVLink alone: its ranks are in one rack. At the edge of a rack some
    ranks have channels over the network, and the rest of it knows of NVLink only.
    """
    words = list(said)
    return any(each.only_nvlink for each in words) and not any(each.used for each in words)


def judge_transport(heard: Heard, wanted: Wanted) -> list[Finding]:
    """Every finding; where RDMA is not declared or no rank uses GPUs there is nothing to hold it against."""
    said = networks(heard)
    if wanted.rdma in ("none", "mrc") or not said or len(heard.facts.nodes) < 2:
        return []
    wrong = list(_wrong_ports(heard, said, wanted))
    # what a rank on a wrong port goes without is no second fault
    right = {r: words for r, words in said.items() if not any(r in f.data.get("ranks", ()) for f in wrong)}
    found = [
        *_silent(heard, said),
        *_sockets(heard, said, wanted),
        *wrong,
        *_missing_rails(heard, said, wanted),
        *_without_gdr(heard, right),
        *_other_rail(heard, right),
    ]
    return found or [_well(heard, said)]


def failed_ports(heard: Heard, addresses: Mapping[str, str]) -> Iterator[Finding]:
    """Ports whose RDMA requests got no acknowledgement after all retries (status 12), by the library.

    Both ends of a dead way complain. One that complains of two peers or more is the port; else the pair is all that is
    known.
    """
    owner = {address: name for name, address in addresses.items()}
    peers: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for rank, words in networks(heard).items():
        for hca, peer in words.failures:
            peers[heard.node_of(rank), hca][peer] += 1
    several = {port for port, seen in peers.items() if len(seen) > 1}
    for name, hca in sorted(several or peers):
        seen = peers[name, hca]
        others = [owner.get(peer, peer) for peer in seen]
        is_port = bool(several)
        both = tuple(sorted({name, *(o for o in others if o in addresses)}))
        yield Finding(
            code="preflight/dead-rail",
            verdict=Verdict.FAIL,
            subject=Subject(kind="port", nodes=(name,), name=hca or "an RDMA port")
            if is_port or len(both) < 2
            else Subject(kind="pair", nodes=both, name=hca),
            message="RDMA requests got no answer after all retries"
            + (f", with {counted(len(seen), 'peer')}" if is_port else ""),
            evidence=(Evidence("NCCL on " + name, f"{hca or 'a port'} to {', '.join(others[:4])}"),),
            remedy="ibstat and perfquery at both ends, the switch port's counters, partition keys; with RoCE the GID "
            "that NCCL uses (NCCL_IB_GID_INDEX) and pause settings",
            data={"hca": hca, "peers": others[:16], "requests": sum(seen.values())},
        )
        if not is_port and len(both) > 1:
            return  # the other end tells of the same way


def judge_failures(heard: Heard) -> list[tuple[str, str, int]]:
    """(node, HCA, how often): ports whose work requests got no answer, the most frequent first."""
    count: Counter[tuple[str, str]] = Counter()
    for rank, words in networks(heard).items():
        count.update((heard.node_of(rank), hca) for hca, _ in words.failures if hca)
    return [(name, hca, num) for (name, hca), num in count.most_common()]


def _finding(
    verdict: Verdict, subject: Subject, message: str, evidence: Iterable[Evidence], remedy: str, **data: object
) -> Finding:
    return Finding(code=CODE, verdict=verdict, subject=subject, message=message, evidence=tuple(evidence)[:4],
                   remedy=remedy, data=dict(data))  # fmt: skip


def _by_node(heard: Heard, ranks: Iterable[int]) -> dict[str, list[int]]:
    out: defaultdict[str, list[int]] = defaultdict(list)
    for rank in sorted(ranks):
        out[heard.node_of(rank)].append(rank)
    return dict(sorted(out.items()))


def _ranks(ranks: Iterable[int]) -> str:
    listed = sorted(ranks)
    return f"{'rank' if len(listed) == 1 else 'ranks'} {', '.join(map(str, listed))}"


# ---- which network ---------------------------------------------------------------------------------------------------


def _silent(heard: Heard, said: Mapping[int, Network]) -> Iterator[Finding]:
    mute = [r for r, words in said.items() if words.is_silent and not words.inside]
    if not mute:
        return
    yield _finding(
        Verdict.UNKNOWN,
        Subject(kind="job", nodes=() if len(mute) == len(said) else tuple(_by_node(heard, mute))),
        f"NCCL did not say which network it chose on {counted(len(mute), 'rank')} of {len(said)}",
        (),
        "look at `nccl` lines in ranks.json; a library that is not NCCL or RCCL says it in other words",
        ranks=mute,
    )


def _sockets(heard: Heard, said: Mapping[int, Network], wanted: Wanted) -> Iterator[Finding]:
    """Ranks on TCP where RDMA is declared: one finding if all are, else one a node, by name."""
    slow = {r for r, words in said.items() if words.is_tcp}
    spared = {r for r in slow if said[r].only_nvlink}
    if spared:
        yield _finding(
            Verdict.WARN,
            Subject(kind="job", nodes=tuple(_by_node(heard, spared))),
            "between these nodes NCCL uses multi-node NVLink alone, and would use TCP for any node beyond: it found no "
            f"{wanted.rdma} device it could use",
            [Evidence("NCCL", f"Using network {said[min(spared)].names[-1]}")],
            "NCCL_DEBUG=INFO says why: look for NCCL_IB_DISABLE, memlock limits, a missing RDMA library",
            ranks=sorted(spared),
        )
    slow -= spared
    if not slow:
        return
    rest = [r for r in said if r not in slow and not said[r].is_silent]
    remedy = "NCCL_DEBUG=INFO shows why: look for NCCL_IB_DISABLE, memlock limits, a missing RDMA plugin or library"
    if not rest:
        yield _finding(
            Verdict.FAIL,
            Subject(kind="job"),
            f"NCCL uses TCP sockets on every rank, and the cluster file declares {wanted.rdma}",
            _why_sockets(said[min(slow)]),
            remedy,
            ranks=sorted(slow),
        )
        return
    usual = Counter(said[r].names[-1] for r in rest if said[r].names).most_common(1)
    others = f"the other {len(rest)} use {usual[0][0]}" if usual else f"the other {len(rest)} do not"
    for name, ranks in _by_node(heard, slow).items():
        yield _finding(
            Verdict.FAIL,
            node(name),
            f"NCCL uses TCP sockets on {_ranks(ranks)}, where {others}",
            _why_sockets(said[ranks[0]]),
            remedy,
            ranks=ranks,
        )


def _why_sockets(words: Network) -> Iterator[Evidence]:
    name = words.names[-1] if words.names else "Socket"
    yield Evidence("NCCL", f"Using network {name}" + (f", provider {words.provider}" if words.provider else ""))
    if words.found_none:
        yield Evidence("NCCL", "NET/IB : No device found.")
    for text in [*words.settings, *words.warnings]:
        if "IB" in text or "NET" in text or "libibverbs" in text:
            yield Evidence("NCCL", text)


# ---- which ports -----------------------------------------------------------------------------------------------------


def _is_wrong(name: str, layer: str, heard: Heard, rank: int, wanted: Wanted) -> bool:
    """Whether a port is not one that carries the job's RDMA."""
    counts = wanted.hcas.get(heard.node_of(rank))
    if counts and name not in counts:
        return True
    return is_accelnet(name) or (wanted.link in _LAYER and layer != _LAYER[wanted.link])


def _wrong_ports(heard: Heard, said: Mapping[int, Network], wanted: Wanted) -> Iterator[Finding]:
    """Channels over a port that does not count; listed and not known to be used is a warning."""
    used: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    listed: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for rank, words in said.items():
        wrong = {h.name: h.layer for h in words.hcas if _is_wrong(h.name, h.layer, heard, rank, wanted)}
        devices = words.devices()
        for name, layer in wrong.items():
            if name in devices:
                used[f"{name} ({layer})", heard.node_of(rank)].append(rank)
            elif not words.used and not words.only_nvlink:
                listed[f"{name} ({layer})", heard.node_of(rank)].append(rank)
    for (port, name), ranks in sorted(used.items(), key=lambda item: item[0][::-1]):
        yield _finding(
            Verdict.FAIL,
            Subject(kind="port", nodes=(name,), name=port),
            f"NCCL sends over {port} on {_ranks(ranks)}: not one of the {wanted.rdma} ports that count",
            _list_evidence(said[ranks[0]]),
            "NCCL_IB_HCA names the ports to use (=mlx5_ib0,...); look at NCCL_TOPO_FILE and /etc/nccl.conf there",
            ranks=ranks,
        )
    if listed:
        ports = sorted({port for port, _ in listed})
        yield _finding(
            Verdict.WARN,
            Subject(kind="job", nodes=tuple(sorted({name for _, name in listed}))),
            f"NCCL lists {', '.join(ports)}, which is not a {wanted.rdma} port that counts, and does not say which "
            "ports it uses",
            _list_evidence(said[next(iter(listed.values()))[0]]),
            "NCCL_IB_HCA names the ports to use (=mlx5_ib0,...)",
        )


def _list_evidence(words: Network) -> list[Evidence]:
    listed = " ".join(f"[{h.index}]{h.name}:{h.port}/{h.layer}" for h in words.hcas)
    channels = ", ".join(f"NET/{name}/{index}: {num}" for (name, index), num in sorted(words.used.items()))
    return [Evidence("NCCL lists", listed), *([Evidence("channels over", channels)] if channels else [])]


def _missing_rails(heard: Heard, said: Mapping[int, Network], wanted: Wanted) -> Iterator[Finding]:
    """Ports that count and are not in a node's list: by name where the probe knows them, else by their number."""
    seen: dict[str, set[str]] = {}
    for rank, words in said.items():
        if words.hcas:
            right = {h.name for h in words.hcas if not _is_wrong(h.name, h.layer, heard, rank, wanted)}
            seen.setdefault(heard.node_of(rank), set()).update(right)
    most = max((len(s) for s in seen.values()), default=0)
    usual = set().union(*(s for s in seen.values() if len(s) == most))
    settings = {heard.node_of(r): words.settings for r, words in said.items()}
    for name, found in sorted(seen.items()):
        counts = wanted.hcas.get(name)
        missing = sorted((set(counts) if counts else usual) - found)
        expected = len(counts) if counts else max(most, wanted.num_hcas or 0)
        if len(found) >= expected:
            continue
        which = ", ".join(missing) if missing else f"{expected - len(found)} of {expected} ports"
        yield _finding(
            Verdict.FAIL,
            node(name),
            f"NCCL leaves out {which}: it lists {len(found)} of the {expected} RDMA ports",
            [Evidence("NCCL lists", ", ".join(sorted(found)) or "none"),
             *(Evidence("NCCL", text) for text in settings.get(name, ()) if "HCA" in text)],
            "look at NCCL_IB_HCA and /etc/nccl.conf; ibstat on the node: a port that is not ACTIVE is left out",
            missing=missing, listed=sorted(found),
        )  # fmt: skip


# ---- how well --------------------------------------------------------------------------------------------------------


def _without_gdr(heard: Heard, said: Mapping[int, Network]) -> Iterator[Finding]:
    """Ranks whose channels pass through host memory. All of them: the node image; the same local ranks on every node:
    how the board is wired, with GPUs far from any port; some: those nodes.
    """
    talking = {r: words for r, words in said.items() if words.used and not words.is_tcp}
    bare = [r for r, words in talking.items() if words.without_gdr]
    if not bare:
        return
    remedy = "lsmod | grep nvidia_peermem, or the open kernel module with dma-buf; NCCL_NET_GDR_LEVEL; NCCL_TOPO_FILE"
    if len(bare) == len(talking):
        yield _finding(
            Verdict.WARN,
            Subject(kind="job"),
            "no rank uses GPUDirect RDMA: every byte between nodes passes through host memory",
            [Evidence(f"rank {bare[0]}", _channels(talking[bare[0]]))],
            remedy,
        )
        return
    well = {_local(heard, r) for r in talking if r not in bare}
    far = [r for r in bare if _local(heard, r) not in well] if len(_by_node(heard, talking)) > 1 else []
    if far:
        locals_ = ", ".join(map(str, sorted({_local(heard, r) for r in far})))
        yield _finding(
            Verdict.WARN,
            Subject(kind="job"),
            f"no node uses GPUDirect RDMA for local ranks {locals_}, and all do for others: they may have no port "
            "near their GPUs",
            [Evidence(f"rank {r}", _channels(talking[r])) for r in far[:2]],
            f"nvidia-smi topo -m; {remedy}",
            ranks=far,
        )
    for name, ranks in _by_node(heard, (r for r in bare if r not in far)).items():
        yield _finding(
            Verdict.FAIL,
            node(name),
            f"{_ranks(ranks)} without GPUDirect RDMA, which {len(talking) - len(bare)} others use",
            [Evidence(f"rank {r}", _channels(talking[r])) for r in ranks[:3]],
            remedy,
            ranks=ranks,
        )


def _local(heard: Heard, rank: int) -> int:
    return heard.start[rank].local_rank if rank in heard.start else rank % max(1, heard.facts.per_node)


def _channels(words: Network) -> str:
    return f"{words.with_gdr} kinds of channel with GDRDMA, {words.without_gdr} without: " + ", ".join(
        f"NET/{name}/{index}" for name, index in sorted(words.used)
    )


def _other_rail(heard: Heard, said: Mapping[int, Network]) -> Iterator[Finding]:
    """Ranks whose channels take other ports than those of equal local ranks elsewhere.

    A node that calls all its ports otherwise (ibp0s1 where others have mlx5_ib0: names depend on udev's rules and on
    the order in which the driver found them) shows nothing by their names.
    """
    per_local: defaultdict[int, dict[int, frozenset[str]]] = defaultdict(dict)
    of_node: defaultdict[str, set[str]] = defaultdict(set)
    for rank, words in said.items():
        if words.devices() and rank in heard.start:
            per_local[heard.start[rank].local_rank][rank] = frozenset(words.devices())
            of_node[heard.node_of(rank)] |= words.devices()
    most = {local: Counter(devices.values()).most_common(1)[0] for local, devices in sorted(per_local.items())}
    everywhere = frozenset[str]().union(*(usual for usual, _ in most.values()))
    for local, (usual, num) in most.items():
        devices = per_local[local]
        if len(devices) < 3 or num * 2 <= len(devices):
            continue
        for rank, found in devices.items():
            if found.isdisjoint(usual) and not everywhere.isdisjoint(of_node[heard.node_of(rank)]):
                yield _finding(
                    Verdict.WARN,
                    Subject(kind="rank", nodes=(heard.node_of(rank),), name=f"rank {rank}"),
                    f"its channels take {', '.join(sorted(found))}; those of local rank {local} on {num} other nodes "
                    f"take {', '.join(sorted(usual))}: traffic crosses rails",
                    _list_evidence(said[rank]),
                    "nvidia-smi topo -m; compare NCCL_TOPO_FILE and CUDA_VISIBLE_DEVICES with the other nodes",
                    rank=rank,
                )


def _well(heard: Heard, said: Mapping[int, Network]) -> Finding:
    names = Counter(words.names[-1] for words in said.values() if words.names)
    name = names.most_common(1)[0][0] if names else "its network"
    talking = [words for words in said.values() if words.used]
    gdr = f", GPUDirect RDMA on all {len(talking)} that have channels to other nodes" if talking else ""
    nvlink = sum(words.only_nvlink for words in said.values())
    if nvlink:
        gdr += f"; {counted(nvlink, 'rank')} talk to other nodes over NVLink alone"
    ports = Counter(frozenset(h.name for h in words.hcas) for words in said.values() if words.hcas)
    lists = f"; ports {fold(sorted(ports.most_common(1)[0][0]))}" if ports else ""
    unused = {h.name for words in said.values() for h in words.hcas if is_accelnet(h.name)}
    lists += f", of which {', '.join(sorted(unused))} is not used" if unused else ""
    return _finding(
        Verdict.PASS, Subject(kind="job"), f"NCCL uses {name} on {counted(len(said), 'rank')}{gdr}{lists}", (), ""
    )


def rail_names(heard: Heard) -> dict[tuple[str, int], str]:
    """(node, local rank) -> the port its channels take, where the library names one."""
    out = {}
    for rank, words in networks(heard).items():
        if rank in heard.start and (found := words.devices()):
            out[heard.node_of(rank), heard.start[rank].local_rank] = "+".join(sorted(found))
    return out
