"""Parts of a fabric by the names that people know: nodes, ports, planes, switches, links. Pure."""

from __future__ import annotations

from fairlead.preflight.pairs.facts import PairFacts
from fairlead.preflight.pairs.parts import Culprit, Kind, Part, Way
from fairlead.records.finding import Subject, node


def subject_of(part: Part, facts: PairFacts) -> Subject:
    """Whom a finding about a part names."""
    kind, key = part.kind, part.key
    match kind:
        case Kind.FABRIC:
            return Subject(kind="cluster", nodes=facts.nodes, name="the fabric")
        case Kind.PLANE:
            return Subject(kind="plane", name=facts.paths[key[0]])
        case Kind.SWITCH:
            below = tuple(facts.nodes[n] for n, group in facts.groups.items() if group == key[0])
            return Subject(kind="plane", nodes=below, name=_group_name(facts, key[0], key[1]))
        case Kind.SPINE:
            return Subject(kind="plane", name=f"{_plane_of(facts, key[1])}/t1-{key[0]}")
        case Kind.TRUNK:
            return Subject(kind="link", name=link_name(facts, key[0], key[1], key[2]))
        case Kind.UPLINKS:
            return Subject(kind="link", name=f"{_group_name(facts, key[0], key[1])} uplinks")
        case Kind.BETWEEN:
            return Subject(kind="link", name=" - ".join(_group_name(facts, g, key[2]) for g in key[:2]))
        case Kind.NODE:
            return node(facts.nodes[key[0]])
        case Kind.PORT:
            return Subject(kind="port", nodes=(facts.nodes[key[0]],), name=facts.paths[key[1]])
        case Kind.PAIR | Kind.LINK:
            path = path_name(facts, key[2]) if kind is Kind.LINK and len(facts.paths) > 1 else ""
            return Subject(kind="pair", nodes=(facts.nodes[key[0]], facts.nodes[key[1]]), name=path)


def path_name(facts: PairFacts, path: int) -> str:
    """What a path is called; a steered one says over which T1 it goes."""
    if path not in facts.ways:
        return facts.paths[path]
    plane, t1 = facts.ways[path]
    return f"{facts.paths[plane]} over {'its T0 alone' if t1 < 0 else f't1-{t1}'}"


def link_name(facts: PairFacts, group: int, t1: int, path: int) -> str:
    """The link between a T0 and a T1, as spec/topology.py names it."""
    return f"{_group_name(facts, group, path)}/t1-{t1}"


def _plane_of(facts: PairFacts, path: int) -> str:
    """`p1`, as the names of its switches begin."""
    return _switch(facts, min(facts.groups), path).partition("/")[0]


def _group_name(facts: PairFacts, group: int, path: int) -> str:
    return _switch(facts, next(n for n, g in facts.groups.items() if g == group), path)


def _switch(facts: PairFacts, node: int, path: int) -> str:
    """The switch a node hangs below on a path, by name."""
    return (facts.switches[node][path] if facts.switches else "") or f"switch {facts.groups[node]}"


def where(culprit: Culprit, facts: PairFacts) -> str:
    """Which way, and with how many witnesses; never a node's name, so that equal findings fold."""
    kind, way = culprit.part.kind, culprit.part.way
    num = len(culprit.partners)
    match kind:
        case Kind.PAIR | Kind.LINK:
            return "in both directions" if way is Way.BOTH else "from the first node to the second"
        case Kind.NODE | Kind.PORT:
            said = {Way.BOTH: "in and out", Way.OUT: "outward", Way.IN: "inward"}[way]
            return (
                f"{said}, with each of {num} partners"
                if culprit.num_bad == culprit.num_tested
                else f"{said}, with {num} partners"
            )
        case Kind.SWITCH:
            return "for every node below this switch"
        case Kind.SPINE:
            return "over each link of this switch, tested by itself"
        case Kind.TRUNK:
            return "over this link between two switches, tested by itself"
        case Kind.UPLINKS:
            return "between nodes below this switch and those below others, and not among the former"
        case Kind.BETWEEN:
            return "between nodes below these two switches, and not among those of either"
        case _:
            return f"between {culprit.num_bad} of {culprit.num_tested} tested pairs of nodes"
