"""The verbs, as data: where each lives and what it does in one line. Nothing is imported until its verb is called."""

from __future__ import annotations

from typing import NamedTuple


class Verb(NamedTuple):
    """`target` is `module:attribute`; the attribute is a function, or an App for a verb with verbs of its own."""

    name: str
    target: str
    help: str


VERBS = (
    Verb("init", "fairlead.cli.init:init", "Write a commented cluster.toml, from a preset or from this machine."),
    Verb("check", "fairlead.cli.check:check", "Validate the cluster file: every problem at once, with its line."),
    Verb("doctor", "fairlead.cli.doctor:doctor", "Say what this machine can do, and what to install for the rest."),
    Verb("exec", "fairlead.cli.exec:exec_", "Run a command on nodes; equal outputs are folded."),
    Verb("probe", "fairlead.cli.probe:probe", "Read nodes' facts and judge each node by itself."),
    Verb(
        "preflight",
        "fairlead.cli.preflight:preflight",
        "The gate before a job: nodes, pairs, collective; who is to blame.",
    ),
    Verb(
        "bringup", "fairlead.cli.bringup:bringup", "The stages in order, one report; without a cluster file, on a lab."
    ),
    Verb("lab", "fairlead.cli.lab:app", "A whole cluster inside this machine, with faults on demand."),
    Verb("fabric", "fairlead.cli.fabric:app", "The multi-plane fabric, simulated packet by packet."),
    Verb("show", "fairlead.cli.show:show", "List earlier runs, or show one again."),
    Verb("rejudge", "fairlead.cli.show:rejudge", "Judge an earlier run's facts by today's rules."),
    Verb("diff", "fairlead.cli.show:diff", "What changed between two runs."),
    Verb("explain", "fairlead.cli.explain:explain", "What a code means: cause, evidence, remedy."),
    Verb("schema", "fairlead.cli.explain:schema", "Print the JSON Schema of a document fairlead writes or reads."),
)
