"""`fairlead logs serve`: the owner of a store, who takes what nodes collect and answers queries."""

from __future__ import annotations

from pathlib import Path

from fairlead.base.files import own_place
from fairlead.cli.common import Common, SpecFile
from fairlead.cli.logs_import import keep_of, zone_of
from fairlead.cli.output import Answer, session
from fairlead.logs.dcr import read_rules
from fairlead.logs.eventtime import Clock
from fairlead.logs.store import Store, default_place, place_of


def serve(
    *,
    store: Path | None = None,
    listen: str = "127.0.0.1:8470",
    name: tuple[str, ...] = (),
    token_file: Path | None = None,
    certificate: Path | None = None,
    key: Path | None = None,
    rules: Path | None = None,
    zone: str = "UTC",
    spec: SpecFile = None,
    common: Common = Common(),
) -> Answer:
    """Own a store of logs: take what `fairlead logs collect` sends, and answer queries, until Ctrl-C or SIGTERM.

    `fairlead logs query --store FOLDER` asks it as long as it runs, and `logs query --server URL` from elsewhere. What
    was acknowledged is on the disk. It speaks plain HTTP but for --certificate and --key: without them, an address that
    others reach belongs on a network of your own.

    Parameters
    ----------
    store
        The folder of the store; else the one in [logs] of the cluster file, or `logs` in the user's state directory.
    listen
        Address and port; port 0 takes a free one.
    name
        A name under which it is asked besides its address and this machine's name; may be given several times.
    token_file
        The file with the token, mode 600; else `serve.token` in the store, made where it is not there.
    certificate
        Speak TLS, with this certificate and those that vouch for it, in PEM; collectors then send to https://NAME:PORT.
    key
        Its private key, in PEM, mode 600.
    rules
        Data collection rules of Azure Monitor (a JSON file, or a folder of them) that say which table a file has.
    zone
        The zone of times without one, such as Europe/Berlin.
    spec
        The cluster file, whose [logs] says where the store is and how much is kept; else FAIRLEAD_SPEC, ./cluster.toml,
        or all of it.
    """
    from fairlead.logs.receive import Receiver
    from fairlead.logs.serve import listening, proof_of, secret_of
    from fairlead.logs.serve import serve as run

    address = listening(listen)
    proof = proof_of(certificate, key)
    said = read_rules(rules) if rules else ()
    keep = keep_of(spec)
    place = place_of(store, keep)
    opened = Store(place)
    # a server's owner keeps its token where a store of this machine would be
    home = place if isinstance(place, Path) else own_place(default_place().absolute())
    try:
        secret, file = secret_of(home, token_file)
        receiver = Receiver(opened, clock=Clock(zone=zone_of(zone)), rules=said, keep=keep)
        if receiver.kept.says:
            session().note(receiver.kept.says)

        def begun(url: str) -> None:
            session().say(f"{url} owns {place}; its token is in {file}")

        try:
            run(opened, receiver, secret, address, names=name, begun=begun, token_file=file.absolute(), place=home,
                proof=proof)  # fmt: skip
        finally:
            receiver.close()
    finally:
        opened.close()
    num = sum(each.records for each in receiver.nodes.values())
    return Answer(
        schema="fairlead.logs-serve/1",
        text=f"{num:,} records of {len(receiver.nodes)} nodes were taken",
        body={"store": str(place), "records": num, "nodes": sorted(receiver.nodes)},
    )
