"""`fairlead weights`: a model on every node for the price of one download."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Group, Parameter

from fairlead.base.confidential import hide
from fairlead.base.files import check_place, write_atomic
from fairlead.base.table import table
from fairlead.base.units import counted, size
from fairlead.cli.common import Common, Exclude, Nodes, SpecFile, chosen
from fairlead.cli.output import Answer, session
from fairlead.cli.weightsrun import answer, by_ranks, how_of, is_control, reached, to_do
from fairlead.errors import UsageError
from fairlead.records.verdict import aggregate

_WHAT = Group("What", sort_key=10)
_HOW = Group("How", sort_key=20)
_FILES = Group("More files", sort_key=40)
_Include = Annotated[tuple[str, ...], Parameter(name="--include", negative=(), group=_WHAT)]
_Leave = Annotated[tuple[str, ...], Parameter(name="--leave-out", negative=(), group=_WHAT)]
_First = Annotated[tuple[str, ...], Parameter(name="--ready-when", negative=(), group=_WHAT)]
_Compare = Annotated[Literal["record", "size", "filelist", "none"], Parameter(group=_WHAT)]
_Transport = Annotated[Literal["tcp", "mrc", "mpi"] | None, Parameter(group=_HOW)]
_Verify = Annotated[bool, Parameter(group=_HOW, negative=())]
_Stream = Annotated[str, Parameter(name="--stream-to", group=_HOW)]
_FileList = Annotated[Path | None, Parameter(group=_FILES)]


def spread(
    source: str,
    dest: str,
    *,
    include: _Include = (),
    leave_out: _Leave = (),
    ready_when: _First = (),
    compare: _Compare = "record",
    filelist: _FileList = None,
    save_filelist: _FileList = None,
    max_bandwidth: Annotated[str, Parameter(group=_HOW)] = "",
    download_ranks: Annotated[int | None, Parameter(group=_HOW)] = None,
    shard_size: Annotated[str, Parameter(group=_HOW)] = "",
    file_shards: Annotated[int, Parameter(group=_HOW)] = 0,
    transport: _Transport = None,
    verify: _Verify = False,
    stream_to: _Stream = "",
    dry_run: Annotated[bool, Parameter(group=_HOW, negative=())] = False,
    prom: Annotated[Path | None, Parameter(group=_FILES)] = None,
    nodes: Nodes = None,
    exclude: Exclude = "",
    spec: SpecFile = None,
    common: Common = Common(),
) -> Answer:
    """Put every object below SOURCE into DEST on every node. Each byte leaves the source once, and is verified
    everywhere.

    What is there already is not fetched again; a run that was killed goes on where it was. Exit codes: 0 every node has
    everything; 3 a node is left out, or an object could not be had; 5 try again later.

    Parameters
    ----------
    source
        az://CONTAINER/PREFIX, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, hf://OWNER/MODEL@REVISION, https://HOST/FILE, a
        folder that the nodes see, or node://NODE/FOLDER: what a node has there from an earlier run, for the others.
    dest
        A folder, the same path on every node.
    include
        Only objects that match this pattern, such as `*.safetensors`; again for each.
    leave_out
        Not those that match this one.
    ready_when
        Fetch what matches first, and publish each of these files as soon as it is whole: `*.json`. The others appear
        together, at the end.
    compare
        What counts as there already: what an earlier run published (record), also files of the right size (size), or
        those of the right size that stand unchanged in --filelist; or none, and all is fetched again.
    filelist
        What an earlier run found at the source: lines of NAME, BYTES, TIME with tabs between.
    save_filelist
        Write what was found now in that form.
    max_bandwidth
        Of all nodes together from the source, in bits a second: 200G, 500M.
    download_ranks
        Let only so many nodes ask the source, spread over all.
    shard_size
        How much one node is given to fetch at a time, such as 2G; without it, twice what its requests ask for.
    file_shards
        The same as a number of parts of the largest file.
    transport
        By what chunks go from node to node: tcp; mrc, over all planes, with fairlead[fabric] in the nodes' Python; mpi,
        where mpirun or srun starts this command once a node, with mpi4py installed. Else what [weights] of the cluster
        file says.
    verify
        Before anything is published, compare every file with what the store itself says of it: Content-MD5 of a blob,
        MD5 of S3 and Google Cloud, SHA-256 of Hugging Face. Each file is read by one node.
    stream_to
        A command for the shell on each node. It gets the files as a tar archive on its standard input while they still
        come, those of --ready-when first: 'tar xf - -C /dev/shm/model', or a loader that reads tar. The node is done
        when the command is; others do not wait for it.
    dry_run
        Only say what would be done.
    prom
        Write metrics for Prometheus's node exporter to this file.
    """
    from fairlead import weights as api
    from fairlead.weights.held import is_node
    from fairlead.weights.objects import tsv

    if transport == "mpi" and not is_control():
        from fairlead.weights.mpi.rank import be_a_rank

        be_a_rank(sys.argv[1:])
    how = how_of(max_bandwidth, download_ranks, shard_size, file_shards, transport, verify=verify, stream_to=stream_to)
    for file in filter(None, (prom, save_filelist)):
        check_place(file)
    choose = partial(
        api.choose, source, include=include, leave_out=leave_out, ready_when=ready_when, compare=compare,
        filelist=filelist,
    )  # fmt: skip
    wished = None if is_node(source) else choose()  # what is wrong with a store is said before any node is reached
    by = by_ranks if transport == "mpi" else reached
    with by(nodes, exclude, spec, common) as (cluster, wanted, spec_):
        wished = wished or choose(cluster=cluster, spec=spec_)
        if save_filelist is not None:
            write_atomic(save_filelist, tsv(sorted(wished.plan.objects, key=lambda o: o.path)))
        run = api.plan if dry_run else api.spread
        report = run(cluster, spec_, wished, dest, nodes=wanted, how=how, progress=session().progress)
    if prom is not None:
        from fairlead.weights.report import metrics

        write_atomic(prom, metrics(report, spec_.cluster.name))
    return answer(report, "weights-plan" if dry_run else "weights-spread")


def plan(
    source: str,
    dest: str,
    *,
    include: _Include = (),
    leave_out: _Leave = (),
    compare: _Compare = "record",
    filelist: _FileList = None,
    max_bandwidth: Annotated[str, Parameter(group=_HOW)] = "",
    download_ranks: Annotated[int | None, Parameter(group=_HOW)] = None,
    shard_size: Annotated[str, Parameter(group=_HOW)] = "",
    file_shards: Annotated[int, Parameter(group=_HOW)] = 0,
    nodes: Nodes = None,
    exclude: Exclude = "",
    spec: SpecFile = None,
    common: Common = Common(),
) -> Answer:
    """What a spread would do: objects, bytes, who has what already, room on each node, how long it may take and from
    which rates that follows. Nothing is fetched.

    Parameters
    ----------
    source
        Where the objects are, as for `spread`.
    dest
        A folder on every node.
    include
        Only objects that match this pattern; again for each.
    leave_out
        Not those that match this one.
    compare
        What counts as there already, as for `spread`.
    filelist
        What an earlier run found at the source.
    max_bandwidth
        Of all nodes together from the source, in bits a second.
    download_ranks
        Let only so many nodes ask the source.
    shard_size
        How much one node is given to fetch at a time.
    file_shards
        The same as a number of parts of the largest file.
    """
    return spread(
        source, dest, include=include, leave_out=leave_out, compare=compare, filelist=filelist, dry_run=True,
        max_bandwidth=max_bandwidth, download_ranks=download_ranks, shard_size=shard_size, file_shards=file_shards,
        nodes=nodes, exclude=exclude, spec=spec, common=common,
    )  # fmt: skip


def pull(
    source: str,
    dest: Path,
    *,
    include: _Include = (),
    leave_out: _Leave = (),
    ready_when: _First = (),
    compare: _Compare = "record",
    filelist: _FileList = None,
    max_bandwidth: Annotated[str, Parameter(group=_HOW)] = "",
    verify: _Verify = False,
    stream_to: _Stream = "",
    common: Common = Common(),
) -> Answer:
    """Put every object below SOURCE into a folder of this machine: the same as `spread`, with one node.

    Parameters
    ----------
    source
        Where the objects are, as for `spread`.
    dest
        A folder here.
    include
        Only objects that match this pattern; again for each.
    leave_out
        Not those that match this one.
    ready_when
        Fetch what matches first, and publish each of these files as soon as it is whole.
    compare
        What counts as there already, as for `spread`.
    filelist
        What an earlier run found at the source.
    max_bandwidth
        In bits a second: 10G.
    verify
        Compare with what the store itself says of each file before anything is published, as for `spread`.
    stream_to
        A command that gets the files as a tar archive on its standard input while they still come, as for `spread`.
    """
    from fairlead import weights as api

    wished = api.choose(
        source, include=include, leave_out=leave_out, ready_when=ready_when, compare=compare, filelist=filelist
    )
    session().open_folder(common.runs)
    how = how_of(max_bandwidth, verify=verify, stream_to=stream_to)
    report = api.pull(wished, dest, how=how, progress=session().progress)
    return answer(report, "weights-pull")


def verify(
    dest: str,
    *,
    nodes: Nodes = None,
    exclude: Exclude = "",
    limit: float = 3600.0,
    spec: SpecFile = None,
    common: Common = Common(),
) -> Answer:
    """Read every published file on every node again and compare it with what was published.

    A file that differs is fetched anew by the next `spread`. Exit codes: 0 all are as published; 3 some are not.

    Parameters
    ----------
    dest
        The folder on the nodes.
    limit
        The longest a node may take, in seconds.
    """
    from fairlead import weights as api

    with reached(nodes, exclude, spec, common) as (cluster, wanted, spec_):
        findings = api.verify(cluster, spec_, dest, nodes=wanted, limit_s=limit)
    roots = sorted({str(f.data["root"]) for f in findings if "root" in f.data})
    return Answer(
        schema="fairlead.weights-verify/1",
        verdict=aggregate(f.verdict for f in findings),
        text=lambda: "\n".join(str(f) for f in findings),
        body={"nodes": str(wanted), "dest": dest, "roots": roots, "findings": findings},
        hints=to_do(findings),
    )


def ls(source: str, *, include: _Include = (), leave_out: _Leave = (), common: Common = Common()) -> Answer:
    """What lies at a source.

    Parameters
    ----------
    source
        Where the objects are, as for `spread`.
    include
        Only objects that match this pattern; again for each.
    leave_out
        Not those that match this one.
    """
    from fairlead import weights as api

    found = api.ls(source, include=include, leave_out=leave_out)
    total = sum(o.size for o in found)
    rows = [[o.path, size(o.size), o.modified or "-", o.tag or "-"] for o in found]
    return Answer(
        schema="fairlead.weights-ls/1",
        text=lambda: "\n".join(
            [table(["NAME", "SIZE", "MODIFIED", "TAG"], rows), f"{counted(len(found), 'object')}, {size(total)}"]
        ),
        body={"source": source.partition("?")[0], "objects": found, "bytes": total},
    )


def manifest(folder: Path, *, common: Common = Common()) -> Answer:
    """Write what nodes need to fetch only what changed: FOLDER/fairlead.manifest.json, to be uploaded with the files.

    It holds the digest of every piece of every file; pieces follow the tensors of safetensors files. A spread of a
    source with a manifest takes from each node's older version what is the same, and believes no byte that the manifest
    does not say. Every file is read.

    Parameters
    ----------
    folder
        The model as it is to be uploaded.
    """
    from fairlead.base.files import disk_errors
    from fairlead.weights.manifest import NAME, encoded, manifest_of

    if not folder.is_dir():
        raise UsageError("cli/usage", f"{folder} is no folder here", hint="fairlead weights manifest FOLDER")
    place = folder / NAME
    with disk_errors(place):
        made = manifest_of(folder, progress=lambda done, total: session().progress("bytes", done, total, ""))
        write_atomic(place, encoded(made))
    total = sum(file.size for file in made.files.values())
    num = sum(len(file.digests) // 64 for file in made.files.values())
    return Answer(
        schema="fairlead.weights-manifest/1",
        text=lambda: f"wrote {place}: {counted(num, 'piece')} of {counted(len(made.files), 'file')}, {size(total)}",
        body={"file": str(place), "files": len(made.files), "pieces": num, "bytes": total, "digest": made.algorithm},
    )


def script(
    source: str,
    dest: str,
    *,
    run: Annotated[str, Parameter(group=_HOW)] = "",
    write: Annotated[Path | None, Parameter(group=_FILES)] = None,
    nodes: Nodes = None,
    exclude: Exclude = "",
    spec: SpecFile = None,
    common: Common = Common(),
) -> Answer:
    """A batch script for Slurm: the model on every node of the job first, then the job itself. No node is contacted.

    Parameters
    ----------
    source
        Where the objects are, as for `spread`.
    dest
        A folder, the same path on every node.
    run
        What the job does then, as you would write it behind `srun`: `python train.py --model /mnt/nvme/m`. In the
        container of the cluster file's [slurm], where it names one, with DEST mounted read-only.
    write
        Write it to this file; without, it is printed.
    """
    from fairlead.spec.loader import read
    from fairlead.weights.script import batch_script

    for said, what in ((source, "the source"), (run, "--run")):
        if hide(said) != said:
            text = f"a script is no place for a secret, and {what} holds one"
            hint = "set it where sbatch is called: AZURE_STORAGE_SAS_TOKEN, FAIRLEAD_WEIGHTS_TOKEN, HF_TOKEN, ..."
            raise UsageError("cli/usage", text, hint=hint)
    loaded = read(spec)
    wanted = chosen(nodes, exclude, loaded.spec.nodes)
    file = str((spec or Path("cluster.toml")).absolute())
    made = batch_script(loaded.spec, source, dest, file=file, num_nodes=len(wanted), run=run)
    if write is not None:
        check_place(write)
        write_atomic(write, made)
    return Answer(
        schema="fairlead.weights-script/1",
        text=(lambda: made.rstrip("\n")) if write is None else (lambda: f"wrote {write}; sbatch {write}"),
        body={"script": made, "nodes": len(wanted)},
    )
