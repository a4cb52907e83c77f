"""Every decoder of bytes from outside: what it takes, a few inputs as they are documented, and how it may refuse.

`DECODERS[name].take(data)` returns for any bytes, or raises one of `refusals`; what else it raises is a fault.
`mangled` alters inputs by the grammar most formats share: words, numbers, lines, brackets. support/fuzz.py searches by
coverage.
"""

from __future__ import annotations

import contextlib
import random
import re
from pathlib import Path

from fairlead.base.confidential import hide, holds_secret
from fairlead.base.nodeset import NodeSet
from fairlead.checks.messages import patterns
from fairlead.cluster.channel import Incoming, segments
from fairlead.cluster.onnode.frames import END, FRAME, MAGIC
from fairlead.cluster.scheduler import judge_nodes
from fairlead.cluster.slurm import held_gpus, of_job
from fairlead.cluster.slurmsteps import layout_of, step_of
from fairlead.cluster.slurmwords import node_words
from fairlead.cluster.talk import Frames, Garbled
from fairlead.cluster.tasks import task_ends
from fairlead.errors import FairleadError
from fairlead.fabric.mrc.headers import Dialect
from fairlead.fabric.mrc.icrc import Icrc
from fairlead.fabric.mrc.packets import WireError, decode
from fairlead.fabric.sim.htsim_files import read_matrix, read_topology
from fairlead.fabric.sim.simulate import load
from fairlead.fabric.transport.exchange import Offer
from fairlead.fabric.transport.exchange import decode as decode_offer
from fairlead.fabric.transport.meeting import meet
from fairlead.lab.faults import script
from fairlead.lab.shape import LabShape
from fairlead.launch.cut import cut
from fairlead.launch.ears import Ears
from fairlead.launch.messages import Event, Over, Said
from fairlead.launch.pending import heard as step_waits
from fairlead.preflight.pairs.answers import REPORT
from fairlead.preflight.pairs.facts import PairFacts
from fairlead.preflight.pairs.judge import judge_pairs
from fairlead.preflight.pairs.limits import DEFAULT
from fairlead.preflight.ranks import nccl, perftest
from fairlead.preflight.ranks.facts import RankFacts
from fairlead.preflight.ranks.judge import judge_ranks
from fairlead.preflight.ranks.run import keep
from fairlead.preflight.ranks.said import heard as words_of
from fairlead.preflight.slurm.scheduler import parse as parse_scontrol
from fairlead.probe.answer import parse as parse_answer
from fairlead.probe.answer import split_capture
from fairlead.probe.readers.kernel_log import _dmesg_line, _journal_line, bounded, is_wanted
from fairlead.probe.readers.nvidia import _document, _parse
from fairlead.probe.readers.tree import Hole
from fairlead.records.border import Breach
from fairlead.records.codec import from_json
from fairlead.records.finding import Finding
from fairlead.records.labstate import LabState
from fairlead.records.runs import RunInfo
from fairlead.serve.proof.destination import destination
from fairlead.serve.proof.names import question
from fairlead.serve.record import parse as parse_bundle
from fairlead.spec.loader import preset_text, read
from fairlead.weights.held import read_held
from fairlead.weights.manifest import read_manifest
from support.decoder import Decoder, as_json, of_file, text_of
from support.roomdecoders import OF_ROOMS

MOST_CHARS = 20_000
_EXAMPLES = Path(__file__).parents[2] / "examples/fabric"


def _frames(data: bytes) -> None:
    frames = Frames()
    for at in range(0, len(data), 37):
        list(frames.feed(data[at : at + 37]))


def _messages(data: bytes) -> None:
    for incoming in (Incoming(), Incoming(3)):
        for at in range(0, len(data), 37):
            incoming.feed(data[at : at + 37])
        incoming.end()


def _slurm(data: bytes) -> None:
    text = text_of(data)
    parse_scontrol(text)
    judge_nodes(NodeSet("n[1-3]"), text, in_job=False)
    with contextlib.suppress(FairleadError):  # a node set that is none
        held_gpus(of_job(text, "7"))
    layout_of(text)
    step_of(text, "a")
    node_words(text)


def _srun(data: bytes) -> None:
    text = text_of(data)
    cut(text)
    step_waits(text)
    with contextlib.suppress(FairleadError):
        task_ends(text)


def _smi(data: bytes) -> None:
    document, _ = _document(data.decode("utf-8", "replace"))
    _parse(document, "nvidia-smi")


def _kernel(data: bytes) -> None:
    lines = [f for t in data.decode("utf-8", "replace").split("\n") if (f := _dmesg_line(t) or _journal_line(t))]
    bounded([line for line in lines if is_wanted(line)])
    for _, _, text in lines:
        for pattern in patterns():
            pattern.match.search(text)


def _rank(data: bytes) -> None:
    ears, facts = Ears(), RankFacts(nodes=("n0", "n1"), per_node=1, wanted=2, limit_s=9.0, backend="processes")
    events: list[Event] = []
    for number, line in enumerate(text_of(data).split("\n")[:50]):
        with contextlib.suppress(Breach):
            _, said = ears.message(number % 2, line, is_out=True)
            if said is not None:
                what, own = said.pop("say"), {"rank": number % 2, "node": f"n{number % 2}"}
                events.append(Said(**own, at_s=1.0, what=what, fields={k: v for k, v in said.items() if k not in own}))
    keep(facts, [*events, Over(at_s=2.0, kind="rendezvous", why="x", ranks=(1,))])
    words_of(facts)
    judge_ranks(facts, {})


def _run(data: bytes) -> None:
    for kind in (RunInfo, list[Finding], LabState):
        with contextlib.suppress(ValueError):
            from_json(data, kind)
    with contextlib.suppress(ValueError):
        judge_pairs(from_json(data, PairFacts), DEFAULT)
    with contextlib.suppress(ValueError):
        judge_ranks(from_json(data, RankFacts), {})


def _offer(data: bytes) -> None:
    offer = decode_offer(data, Offer)
    meet(decode_offer(_OFFER, Offer), offer)


def _secrets(data: bytes) -> None:
    hide(text_of(data))
    holds_secret(text_of(data))


_END = as_json({"rc": 0, "out": 5, "err": 0})
_FRAMES = MAGIC + b"".join(FRAME.pack(k, 0, len(p)) + p + END for k, p in ((b"H", b""), (b"o", b"hi\n"), (b"x", _END)))
_PLAIN = Dialect(icrc=Icrc.NONE)
_PACKETS = (
    "ca10ffff00abcdefb0123456 01020304 beef8001 112233445566778899aabbcc00000003 61626300",
    "c910ffff00abcdefa0123456 01020304 112233445566778899aabbcc00000003 0000cafe 61626300",
    "d100ffff0000000100000002 1f030405",
    "dc00ffff0000000100000000 a9a2fffec0de00421111222200000004250800010000000000000076 beef7abcc000ffee",
    "dd00ffff0000000100000000 00000207c0de004200000000000a0b0c2000beef",
    "de00ffff0000000100000000 000000004321000000030004beef8001",
)
"""A WRITE of one packet, its last with a number, ACK, SACK, NACK, PROBE: as they are written out for test_packets."""
_FACTS = {"schema": "fairlead.facts/1", "facts": {"net": {"links": {"eth0": {"addresses": ["10.0.0.4/24"]}}}}}
_PAIRS = {
    "nodes": ["n0", "n1"], "paths": ["eth"], "small": 8, "full": 2, "num_flows": 8, "again_small": 8,
    "schema": "fairlead.pairs/2", "bursts": [[0, 1, 0, 3, 0, 0, 0, 0, 8]], "members": [0, 1],
}  # fmt: skip
_RANKS = {
    "nodes": ["n0"], "per_node": 1, "wanted": 1, "limit_s": 9.0, "backend": "tasks",
    "lines": [{"say": "start", "rank": 0, "node": "n0", "at_s": 1.0}],
    "ends": [{"node": "n0", "rank": 0, "state": "done", "rc": 0}],
}  # fmt: skip

_OFFER = as_json({
    "context": "0" * 32, "ports": [[4791]], "qp_num": 3, "psn": 1, "mtu": 1024, "mpr": 8, "wimm": 8,
    "place": {"ports": [{"rail": "plane 0", "plane": 0, "address": "fcbb:bb00:e000:1000::", "rate_bps": 1e9}],
              "seat": {"t0": 0, "port": 0}, "steering": {"by": "usid", "t1": 2}},
})  # fmt: skip

DECODERS: dict[str, Decoder] = {
    "offers of the fabric transport": Decoder(_offer, (_OFFER,), (FairleadError,)),
    "manifests of bundles": Decoder(
        parse_bundle,
        (as_json({"schema": "fairlead.bundle/1", "name": "m", "form": "oci", "platform": "any", "licence": "mit",
                "files": [{"path": "a/b", "size": 3, "sha256": "0" * 64}],
                "stored": [{"path": "model/a/b", "size": 3, "sha256": "f" * 64}]}),
         as_json({"schema": "fairlead.bundle/2"})),
        (FairleadError,),
    ),
    "socket addresses": Decoder(
        lambda data: destination(data, 1),
        (b"\2\0\1\xbb\x08\x08\x08\x08" + bytes(8), b"\1\0/run/x.sock\0", b"\x28\0" + bytes(14)),
    ),
    "questions for names": Decoder(
        question, (b"\x12\x34\1\0\0\1\0\0\0\0\0\0\2hf\2co\0\0\1\0\1",), (ValueError,)
    ),
    "frames": Decoder(
        _frames,
        (_FRAMES,),
        (Garbled,),
    ),
    "messages": Decoder(_messages, (b"a line\n" + b"".join(segments(b"a frame" * 9)) + b"~fl1 1 aGVsbG8=\n",)),
    "reports of agents": Decoder(
        lambda data: REPORT(text_of(data)),
        (as_json({"step": 3, "ports": [4000, 4001], "tcp": 5, "errors": [[0, "ENETUNREACH"]]}),
         as_json({"step": 9, "bad": [[1, 0, 3, 0, 0, 8, 0]], "full": [[0, 8952]], "counters": {"ib0": {"x": 7}}})),
        (Breach,),
    ),
    "answers of probes": Decoder(lambda data: parse_answer(data, "n1"), (as_json(_FACTS),), (FairleadError,)),
    "captures": Decoder(
        split_capture,
        (as_json({**_FACTS, "tree": {"/etc/a": "x", "/etc/": ["a"], "/b@": "c", "!d": "", "/e": {"hex": "00ff"}}}),),
        (FairleadError,),
    ),
    "words of ranks": Decoder(
        _rank,
        (as_json({"say": "start", "local_rank": 0, "world": 2, "host": "n0", "pid": 7, "env": {"NCCL_DEBUG": "INFO"}})
         + b"\n" + as_json({"say": "phase", "phase": "join"}) + b'\n~a.1 0 2 {"say":\n~a.1 1 2 "torch"}\n',
         as_json({"say": "store", "host": "10.0.0.1", "port": 4711}) + b"\n"
         + as_json({"say": "missing", "ranks": "0-1"})),
    ),
    "Slurm's listings": Decoder(
        _slurm,
        (b"NodeName=n1 CPUTot=8 Gres=gpu:8(S:0-1) State=IDLE+DRAIN Reason=fairlead gpu/count [root@2026]",
         b"n1|drained*|not good\nn2|idle|none\n", b'{"nodes":[{"name":"n1","state":["IDLE","DRAIN"],"gres":"gpu:8"}]}',
         b"JobId=7 JOB_GRES=gpu:a100:16 Nodes=n[1-2] CPU_IDs=0-95 Mem=0 GRES=gpu:a100:8(IDX:0-7) Requeue=0",
         (b"Job step layout:\n\t2 tasks, 2 nodes (n[1-2])\n\n\tNode 0 (n1), 1 task(s): 0 \n"
         b"\tNode 1 (n2), 1 task(s): 1 \n")),
    ),
    "words of srun": Decoder(
        _srun,
        (b"srun: error: n1: tasks 2-3: Exited with exit code 7", b"srun: error: n0: task 0: Segmentation fault",
         b"srun: job 12 queued and waiting for resources",
         b"slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***"),
    ),
    "nvidia-smi -q -x": Decoder(
        _smi,
        ((b'<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">\n<nvidia_smi_log>'
         b"<driver_version>550.54</driver_version><attached_gpus>1</attached_gpus>"
         b'<gpu id="00000001:00:00.0"><ecc_errors><volatile><sram_correctable>0</sram_correctable></volatile>'
         b"</ecc_errors><processes></processes></gpu></nvidia_smi_log>\n"
         b"WARNING: infoROM is corrupted at gpu 0002:00:00.0"),),
        (Hole,),
    ),
    "kernel logs": Decoder(
        _kernel,
        ((b"<4>[ 1234.567890] NVRM: Xid (PCI:0001:00:00): 79, pid=1, GPU has fallen off the bus.\n"
         b"<3>[    5.1] mlx5_core 0101:00:00.0: mlx5_cmd_out_err:839:(pid 77): ACCESS_REG failed\n"
         b"<2>[ 99.000001] EXT4-fs error (device sda1): ext4_find_entry:1682: inode #2: comm ls: reading directory"),
         as_json({"MESSAGE": "Out of memory: Killed process 7 (x)", "PRIORITY": "3", "SYSLOG_IDENTIFIER": "kernel",
                "_SOURCE_MONOTONIC_TIMESTAMP": "5140900"})),
    ),
    "NCCL's log": Decoder(
        lambda data: nccl.parse(text_of(data).split("\n")),
        ((b"n0:7:7 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.1<0>\n"
         b"n0:7:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] [send] via NET/IB/0/GDRDMA\n"
         b"n0:7:9 [0] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion with status=12"),),
    ),
    "perftest": Decoder(
        lambda data: perftest.parse(text_of(data)),
        ((b" #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n"
         b" 65536      5000             392.12             391.98             0.747643\n"),),
    ),
    "packets of MRC": Decoder(
        lambda data: decode(data, _PLAIN),
        tuple(bytes.fromhex(text) + bytes(4) for text in _PACKETS),
        (WireError,),
    ),
    "htsim topologies": Decoder(
        of_file(read_topology, "a.topo"),
        ((b"Nodes 16\nTiers 2\nPodsize 4\nTier 0\nDownlink_speed_Gbps 400\nRadix_Down 4\nRadix_Up 4\n"
         b"Downlink_Latency_ns 300\nTier 1\nDownlink_speed_Gbps 400\nRadix_Down 4\nDownlink_Latency_ns 300\n"),),
        (FairleadError,),
    ),
    "htsim matrices": Decoder(
        of_file(read_matrix, "a.cm"),
        ((b"Nodes 4\nConnections 3\nTriggers 1\n0->1 id 1 start 40 size 1000 send_done_trigger 7\n"
         b"1->2 id 2 start 0 size 2000\n0->3 id 3 trigger 7 size 3000\ntrigger id 7 oneshot\n"),),
        (FairleadError,),
    ),
    "scenarios": Decoder(
        of_file(load, "scenario.toml"),
        tuple((_EXAMPLES / name).read_bytes() for name in ("all-to-all-64.toml", "ev-loss.toml")),
        (FairleadError,),
    ),
    "cluster files": Decoder(
        of_file(lambda path: read(path, environ={}), "cluster.toml"),
        (preset_text("lab").encode(),
         b'schema = 1\n[access]\nvia = "ssh"\n[[pool]]\nname = "a"\nnodes = "n[0-3]"\n'),
        (FairleadError,),
    ),
    "scripts of faults": Decoder(
        lambda data: script.parse(text_of(data), LabShape()),
        (b"# comment\n0      silent-drop p2/n3\n2.5s   loss p*/n1 percent=5 side=up\n5      heal silent-drop p2/n3\n",),
        (FairleadError,),
    ),
    "manifests of weights": Decoder(
        lambda data: read_manifest(data, "s"),
        (as_json({"schema": "fairlead.weights-manifest/1", "algorithm": "blake3", "piece_bytes": 1 << 18,
                "files": {"a": {"size": 3, "digests": "ab" * 32},
                          "b": {"size": 300_000, "digests": "cd" * 64, "lengths": [150_000, 150_000]}}}),),
        (FairleadError,),
    ),
    "what a node holds of weights": Decoder(
        lambda data: read_held(text_of(data), "node://n/m"),
        (as_json({"tags": {"a": "t"}, "manifest": {
            "schema": "fairlead.weights-manifest/1", "algorithm": "sha256", "piece_bytes": 1 << 18,
            "files": {"a": {"size": 3, "digests": "ab" * 32}}}}), as_json({"error": "no"}), b"{}"),
        (FairleadError, Breach),
    ),
    "files of a run": Decoder(
        _run,
        (as_json(_PAIRS), as_json(_RANKS),
         as_json({"id": "20261120-214207-preflight-7f3a", "verb": "x", "argv": [], "version": "1", "start": ""}),
         as_json([{"code": "gpu/count", "verdict": "fail", "subject": {"kind": "job"}, "message": "m"}])),
    ),
    "node sets": Decoder(
        lambda data: NodeSet(text_of(data)), (b"n[0-3,7],gpu-[001-003]-ib0", b"rack[1-2]n[1-9/2]"), (FairleadError,)
    ),
    "what is redacted": Decoder(
        _secrets, (b"--token abc HF_TOKEN=hf_x Authorization: Bearer x user:pw@host",)
    ),
    **OF_ROOMS,
}  # fmt: skip
"""By what people call it."""

_TOKEN = re.compile(rb"[0-9]+|[A-Za-z_]+|\s+|.", re.DOTALL)
_ODD = (
    b"", b"-1", b"0", b"70000", b"9" * 40, b"1e308", b"nan", b"inf", b"1e999", b"\x00", b"\xff\xfe", b"\x1b[2J",
    b"\xed\xa0\x80",
    b"\xe2\x80\xae", b"[" * 200, b"{" * 200, b"]", b"}", b'"', b"\n", b"\r", b",", b":", b"=", b"null", b"true", b"[]",
    b"{}", b"n[0-99999999]", b"..", b"/", b"-", b"\xc2\xb3", b"0x10", b"1_0", b"&a;", b"x" * 3000,
    b"<!ENTITY a '&b;&b;'>",
)  # fmt: skip
"""What formats seldom hold, and programs seldom think of."""


def mangled(draw: random.Random, seeds: tuple[bytes, ...]) -> bytes:
    """A seed with some of its words others, missing, doubled, or taken from another place."""
    tokens: list[bytes] = _TOKEN.findall(draw.choice(seeds))
    for _ in range(draw.randrange(1, 6)):
        at = draw.randrange(len(tokens) + 1)
        what = draw.randrange(6)
        if what == 0:
            del tokens[at : at + draw.randrange(1, 4)]
        elif what == 1:
            tokens[at : at + 1] = [draw.choice(_ODD)]
        elif what == 2:
            tokens.insert(at, draw.choice(_ODD))
        elif what == 3 and tokens:
            tokens.insert(at, draw.choice(tokens))
        elif what == 4:
            end = at + draw.randrange(1, 30)
            tokens[at:at] = tokens[at:end] * draw.choice((1, 2, 20))
        elif tokens:
            at = draw.randrange(len(tokens))
            tokens[at] = bytes(draw.randrange(256) if draw.random() < 0.3 else byte for byte in tokens[at])
    return b"".join(tokens)[:MOST_CHARS]


def fault_of(decoder: Decoder, data: bytes) -> Exception | None:
    """What a decoder raised that it should not have."""
    try:
        decoder.take(data)
    except decoder.refusals:
        return None
    except Exception as fault:  # noqa: BLE001 - any is one
        return fault
    return None
