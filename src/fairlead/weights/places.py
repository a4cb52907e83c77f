"""Where nodes reach each other: the address book that the probe makes."""

from __future__ import annotations

from collections.abc import Mapping

from fairlead.base.nodeset import NodeSet, fold
from fairlead.cluster import Cluster, Command
from fairlead.errors import ClusterError
from fairlead.probe import KEEP_BYTES, LIMIT_S, NodeAnswer, arguments, program, sort_answers
from fairlead.probe.addresses import book_of
from fairlead.spec.model import Spec


def addresses(cluster: Cluster, spec: Spec, nodes: NodeSet) -> Mapping[str, str]:
    """Node -> its address, of those that answer. Raises ClusterError where one answers without an address."""
    probe, words = program(), arguments(imds=False, limit_s=LIMIT_S)
    pythons = {n: pool.python for pool in spec.pools for n in pool.nodes}
    commands = {n: Command(argv=probe.words(pythons.get(n, "python3"), words), stdin=probe.stdin) for n in nodes}
    results = cluster.run_each(commands, limit_s=max(spec.access.timeout_s, LIMIT_S), keep_bytes=KEEP_BYTES)
    facts, _ = sort_answers([
        NodeAnswer(r.node, r.stdout.data if r.ok else None, r.error, r.hint, r.code) for r in results
    ])  # fmt: skip
    found = {place.node: place.address for place in book_of(facts).places}
    without = [n for n in found if not found[n]]
    if without:
        text = f"{fold(without)} cannot be reached by the others: no address that the probe found will do"
        raise ClusterError("weights/no-address", text, nodes=fold(without), hint=f"fairlead probe -w {fold(without)}")
    # one that does not answer takes part all the same: that it is lost is said where everything is said of it
    return {n: found.get(n, "0.0.0.0") for n in nodes}  # noqa: S104 - never bound: it does not answer
