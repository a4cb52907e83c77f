"""Decoders of outside bytes in the rooms of plans, logs, weights, training, the watch, audits and the transport."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import tarfile
import tempfile
from pathlib import Path

from fairlead.audit.logtext import facts_of_log
from fairlead.base.nodeset import NodeSet
from fairlead.base.tensors import ends_of_tensors, odd_index, odd_tensors
from fairlead.errors import FairleadError
from fairlead.fabric.mrc.packets import Path as Way
from fairlead.fabric.transport.seal import Seal
from fairlead.logs import archive, parquet
from fairlead.logs.dcr import read_rules, table_of
from fairlead.logs.diagnose.flight import decode as decode_dump
from fairlead.logs.eventtime import Clock
from fairlead.logs.format import formats
from fairlead.logs.kql.evaluate import Evaluator, NoTables
from fairlead.logs.kql.parser import parse as parse_kql
from fairlead.logs.kql.problems import Refused
from fairlead.logs.kql.relation import Limits
from fairlead.logs.kql.script import queries_of
from fairlead.logs.parse import Context, Raw, records
from fairlead.plan.choice.skus import read_offers
from fairlead.plan.lint.judge import lint_paths
from fairlead.plan.slurm.topology import parse_groups
from fairlead.records.border import Breach
from fairlead.train.config import load as load_training
from fairlead.watch.control import LOOK, VERIFIED
from fairlead.watch.onnode import chain, links, rdma, wire
from fairlead.weights.objects import bad_names, read_tsv, without_folders
from fairlead.weights.onnode.journal import Journal
from fairlead.weights.onnode.place import RECORD, RECORD_SCHEMA, read_record
from support.decoder import Decoder, as_json, of_file, text_of
from support.mrc_pair import Pair
from support.traps import NETWORK_VALUES, POLICY, SCRIPT, WELL

_NETLINK = json.loads((Path(__file__).parents[1] / "golden/rdma_netlink.json").read_text())["netlink"]
_LIMITS = Limits(rows=1000, answer_rows=100, memory_bytes=1 << 40)
_CLOCK = Clock(written_ns=1_767_225_600 * 10**9, now_ns=1_767_225_601 * 10**9, boot_ns=1_767_225_600 * 10**9)


def _kql(data: bytes) -> None:
    """Lexer, parser, binder: no row is made."""
    Evaluator(NoTables(), _LIMITS, {}).run(parse_kql(data.decode("utf-8", "replace")))


def _archive(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as place:
        path, inside = Path(place) / "a.tar", Path(place) / "inside"
        path.write_bytes(data)
        inside.mkdir()
        for member in archive.members(path, inside, []):
            assert member.at.parent == inside
            assert ".." not in member.path.parts


def _tar() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as made:
        for name in ("var/log/syslog", "a" * 120, "é"):
            info = tarfile.TarInfo(name)
            info.size = 600
            made.addfile(info, io.BytesIO(bytes(600)))
    return out.getvalue()


def _parquet() -> bytes:
    try:
        import pyarrow as pa
        from pyarrow.parquet import write_table
    except ImportError:  # then nothing of it is read, either
        return b"PAR1"
    out = io.BytesIO()
    schema = pa.schema([
        *((name, pa.string()) for name in ("RawData", "Computer", "FilePath", "Level", "Component", "TimeFrom")),
        *((name, pa.int64()) for name in ("Pid", "JobId", "Cut", "FileId", "Offset", "End")),
        ("SourceTable", pa.string()), ("TimeGenerated", pa.timestamp("ns", "UTC")),
        ("IngestTime", pa.timestamp("ms", "UTC")), ("Fields", pa.map_(pa.string(), pa.string())),
    ])  # fmt: skip
    values = {pa.string(): "a", pa.int64(): 1, schema.field("Fields").type: [("a", "b")]}
    row = {field.name: values.get(field.type, 0) for field in schema} | {"End": 2}
    write_table(pa.Table.from_pylist([row] * 3, schema=schema), out)
    return out.getvalue()


def _lines(data: bytes) -> None:
    ends, raws = 0, []
    for line in data.split(b"\n"):
        raws.append(Raw(ends, ends + len(line) + 1, line))
        ends += len(line) + 1
    head = text_of(raws[0].data)
    for form in formats().values():
        for _ in records(raws, form, Context(_CLOCK, head=head)):
            pass


def _journal(path: Path) -> dict[int, bytes]:
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        journal = Journal(folder)
        try:
            return journal.latest(100)
        finally:
            os.close(journal.fd)
    finally:
        os.close(folder)


def _entries() -> bytes:
    """Written by the journal itself: two chunks, and one that is gone."""

    def add(path: Path) -> bytes:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        journal = Journal(folder)
        os.close(folder)
        journal.add([(0, b"a" * 32), (7, b"b" * 32), (0, bytes(32))])
        os.close(journal.fd)
        return path.read_bytes()

    made = of_file(add, "journal")(b"")
    assert isinstance(made, bytes)
    return made


def _record(path: Path) -> object:
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return read_record(folder)
    finally:
        os.close(folder)


def _tensors(data: bytes) -> None:
    def read(at: int, num: int) -> bytes:
        return data[at : at + num]

    odd_tensors(len(data), read)
    ends = ends_of_tensors(len(data), read)
    assert ends == sorted(ends)
    assert ends[-1] == len(data)
    odd_index("a/model.safetensors.index.json", data, {"a/b"})


def _listed(path: Path) -> None:
    list(bad_names(without_folders(read_tsv(path))))


def _netlink(data: bytes) -> None:
    payloads = [payload for *_, payload in wire.messages(data)]
    for payload in [*payloads, data]:
        for take in (links.links_of, rdma.devices, *(_objects(what) for what in rdma.TABLES)):
            try:
                take([payload])
            except wire.Garbled:
                continue
        rdma.address(payload)


def _objects(what: str):
    return lambda payloads: list(rdma.objects(what, payloads))


def _chain(path: Path) -> None:
    """Followed, then gone on with, as a watch that starts again does."""
    folder = str(path.parent)
    chain.check(folder, {0: "0" * 64})
    made = chain.Chain(folder)
    try:
        made.append([{"kind": "start"}])
    finally:
        made.close()
    for name in chain.files_in(folder):
        (path.parent / name).unlink()


def _looks(data: bytes) -> None:
    for border in (LOOK, VERIFIED):
        try:
            border(data)
        except Breach:
            continue


def _rules(path: Path) -> None:
    table_of(Path("/var/log/syslog.1"), read_rules(path))


def _datagrams(data: bytes) -> None:
    """As they come to a queue pair, sealed by who holds the token and with every mark of a way."""
    seal = Seal(b"k" * 32, b"a" * 16, b"b" * 16)
    assert Seal(b"k" * 32, b"a" * 16, b"b" * 16).open(memoryview(data)) is None
    opened = Seal(b"k" * 32, b"a" * 16, b"b" * 16).open(memoryview(data + seal.close([data])))
    assert opened == data
    pair = Pair()
    pair.b.region(4096)
    way = Way(0)
    for at in range(0, len(data), 200):
        pair.b.qp.receive(opened[at : at + 200], way, pair.now)
        list(pair.b.qp.transmit(pair.now, 1))


_SAFE = as_json({"a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}, "__metadata__": {"format": "pt"}})
_ENTRY = {
    "record_id": 1, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": 4, "p2p_seq_id": 0,
    "profiling_name": "nccl:all_reduce", "input_sizes": [[3, 4]], "state": "completed", "is_p2p": False,
    "frames": [{"name": "train", "filename": "train.py", "line": 3}],
}  # fmt: skip
_DUMP = {"version": "2.9", "pg_config": {"0": {"desc": "default_pg", "ranks": "[0, 1]"}}, "entries": [_ENTRY] * 2}
"""As torch/distributed/flight_recorder/components/types.py reads it."""

_DECODERS: dict[str, Decoder] = {
    "manifests of plan --lint": Decoder(
        of_file(lambda path: lint_paths([path]), "manifest.yaml"),
        (POLICY.encode(), NETWORK_VALUES.encode(), *(t.encode() for n, t in WELL.items() if n.endswith(".yaml")),
         b"a: &x {b: [1, *x]}\n<<: *x\n? [c]\n: !!binary aGk=\n--- |\n  text\n...\n"),
    ),
    "scripts of plan --lint": Decoder(
        of_file(lambda path: lint_paths([path]), "make.sh"),
        (SCRIPT.encode(),
         b"az aks nodepool add -g a \\\n --name 'p' --node-vm-size Standard_ND96isr_H200_v5 && x $(y)"),
    ),
    "lists of SKUs": Decoder(
        of_file(read_offers, "skus.json"),
        (as_json([{"name": "Standard_ND96isr_H200_v5", "resourceType": "virtualMachines", "locations": ["eastus"],
                   "capabilities": [{"name": "GPUs", "value": "8"}, {"name": "RdmaEnabled", "value": "True"}],
                   "restrictions": [{"type": "Location", "reasonCode": "NotAvailableForSubscription"}]}]),),
        (FairleadError,),
    ),
    "groups of nodes": Decoder(
        lambda data: parse_groups(text_of(data), NodeSet("n[0-2]"), file="f"),
        (b"n0 a\nn1: b # x\nn2 00000000-0000-0000-0000-000000000000_7\n",), (FairleadError,),
    ),
    "dumps of flight recorders": Decoder(
        lambda data: decode_dump(data, 0),
        (as_json(_DUMP), *(pickle.dumps(_DUMP, protocol) for protocol in (0, 2, 4))),
        (ValueError,),
    ),
    "KQL": Decoder(
        _kql,
        (b"print x = 1, y = strcat('a', @'b') | where x in (1, 2) and y has 'a' | summarize count() by bin(x, 5)",
         b"let f = (a: long, b: string = 'x') { range i from 1 to a step 1 | extend s = b }; f(3) | take 1",
         (b"datatable(t: datetime, d: dynamic)[datetime(2026-01-01), dynamic({'a': [1, 2.5, null]})] "
          b"| mv-expand d.a to typeof(long) | parse kind=regex tostring(d) with * 'a' z: int * | top 3 by z"),
         b"print a = 1 | join kind=leftouter (print a = 2, c = 1h) on a | project-away a | render timechart"),
        (FairleadError, Refused, RecursionError),  # the last one `answer` makes kql/limit
    ),
    "files of queries": Decoder(
        of_file(queries_of, "queries.json"),
        (as_json([{"query": "print 1", "id": 3}, "print 2"]), b'{"kql": "print 1"}\n"print 2"\n'), (FairleadError,),
    ),
    "lines of logs": Decoder(
        _lines, tuple("\n".join(sample.line for sample in form.sample).encode() for form in formats().values())
    ),
    "data collection rules": Decoder(
        of_file(_rules, "rules.json"),
        (as_json({"properties": {
            "dataSources": {"logFiles": [{"filePatterns": ["/var/log/*.log"], "streams": ["Custom-A"]}]},
            "dataFlows": [{"streams": ["Custom-A"], "outputStream": "Custom-A_CL", "transformKql": "source"}]}}),),
        (FairleadError,),
    ),
    "archives of logs": Decoder(_archive, (_tar(), gzip.compress(_tar())), num_quick=200),
    "the store as Parquet": Decoder(
        of_file(lambda path: list(parquet.tables(path)), "a.parquet"), (_parquet(),), (parquet.NotOurs,), num_quick=100
    ),
    "kernel logs of an audit": Decoder(
        lambda data: facts_of_log(text_of(data), "n0", "f"),
        ((b"6,1,5140900,-;Linux version 6.8\n<4>[    5.140900] mlx5_core 0101:00:00.0 eth1: Link up\n"
          b"[Thu Sep  3 05:08:02 2026] hv_netvsc eth0: VF slot 1 added\nSep  3 05:08:02 h kernel: eth0 renamed"),
         as_json({"SYSLOG_IDENTIFIER": "kernel", "MESSAGE": "x: link down",
                  "__REALTIME_TIMESTAMP": "1788400000000000"})),
        (FairleadError,),
    ),
    "journals of weights": Decoder(of_file(_journal, "journal"), (_entries(),)),
    "records of weights": Decoder(
        of_file(_record, RECORD),
        (as_json({"schema": RECORD_SCHEMA, "algorithm": "blake3", "chunk_bytes": 1, "files": {}}),),
    ),
    "headers of tensors": Decoder(
        _tensors,
        (len(_SAFE).to_bytes(8, "little") + _SAFE + bytes(16), as_json({"weight_map": {"x": "b"}}),
         b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n"),
    ),
    "lists of weights": Decoder(
        of_file(_listed, "files.tsv"),
        (b"name\tbytes\ttime\na/b.bin\t3\t2026-01-01T00:00:00+00:00\n# x\na/../c\t4\nA/B.bin\t9\n",), (FairleadError,),
    ),
    "training configurations": Decoder(
        of_file(load_training, "train.toml"),
        ((b'[model]\npath = "m"\nfrozen = ["a.*"]\n[data]\ntokens = "t.npy"\n[optimizer]\nlr = 1e-4\nbeta1 = 0.9\n'
          b'warmup = 3\n[run]\nsteps = 10\n'),
         b'[model]\npath = "m"\n[data]\ntext = "t.jsonl"\n[run]\nsteps = 1\n'),
        (FairleadError,),
    ),
    "netlink": Decoder(
        _netlink, tuple(bytes.fromhex(data) for answers in _NETLINK.values() for data in answers), (wire.Garbled,)
    ),
    "audit records": Decoder(
        of_file(_chain, chain.NEWEST),
        (b'{"n":0,"prev":"' + b"0" * 64 + b'","kind":"start"}\n{"n":1,"prev":"x","kind":"end"}\n{"n":2',),
    ),
    "looks at a watch": Decoder(
        _looks,
        (as_json({"t": 1788400000000000000, "node": "n0", "age_s": 0.1, "links": {"eth0": {"type": 1}},
                  "ports": {}, "connections": []}),
         as_json({"num": 1, "first": 0, "last": 0, "head": "0" * 64,
                  "broken": {"file": "a", "line": 1, "n": 0, "why": "x"}})),
    ),
    "datagrams of the fabric transport": Decoder(
        _datagrams,
        (bytes.fromhex("ca10ffff0000001db0123456010203 04beef8001112233445566778899aabbcc0000000361626300" + "00" * 4),
         bytes.fromhex("d100ffff0000001d000000021f030405"), b"\0" * 40),
    ),
}  # fmt: skip
OF_ROOMS = {name: decoder._replace(num_quick=200) for name, decoder in _DECODERS.items()}
"""By what people call it."""
