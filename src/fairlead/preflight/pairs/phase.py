"""The pair phase: what is asked of the nodes, in which order, and when it is enough. No I/O, no clock.

`pair_phase` is a generator: it yields steps (one line for all nodes, and who must answer) and is sent the answers; its
return value is the PairFacts. A driver performs the steps, on nodes (drive.py) or on a simulated fabric; both run the
same scheduling and the same blame.

    setup, peers            every node opens its sockets and learns the others' ports
    clock, work             time of day against ours; a fixed amount of arithmetic
    knock, knocked          who is at the addresses that are its own by its word
    burst rounds            n-1 rounds over all directed pairs, on every path at once
    speed rounds            ceil(log2 n) rounds, on every plane at once
    adaptive rounds         only where something looked wrong: repeated in quiet, until each suspicion is settled
    steered rounds          each link between switches by itself, where the way of a packet can be chosen
    tcp                     connections on the address that programs use, where nothing explains a failure yet
    counters                each port's, against those of the beginning
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any

from fairlead.preflight.pairs import counters
from fairlead.preflight.pairs.answers import AgentReport
from fairlead.preflight.pairs.blame import MIN_PARTNERS, NEARLY_ALL
from fairlead.preflight.pairs.facts import Burst, Clock, Fault, PairFacts, Speed, Work
from fairlead.preflight.pairs.onnode.coming import knock_of
from fairlead.preflight.pairs.schedule import Test, all_pairs, fit, log_degree, max_adaptive_rounds
from fairlead.preflight.pairs.steered import rounds as steered_rounds
from fairlead.preflight.pairs.steps import Answers, Counted, Plan, Step
from fairlead.preflight.pairs.symptoms import Means, blames, wanted

SLOW_SUSPECT = 1.5
"""A node that takes this many times the median while all work is asked again, alone."""
CROWDED = 4
"""Where the median node takes this many times its CPU time, it mostly waited: hosts that share processors."""
ALONE_TIMES = 4
MAX_ALONE = 3
KNOCKS = 2
"""How often is knocked again where nobody has shown that it is there."""
MAX_TCP_AGAIN, TCP_AGAIN_TIMES = 2, 2
"""Connections that failed are tried again if they are at most so many a node: more are no chance. And with how many
times the time."""


Phase = Generator[Step, Answers, PairFacts]


def compare(facts: PairFacts, counted: Sequence[Counted], reports: Mapping[int, AgentReport]) -> None:
    """What the nodes' counters say now against what they said first, into the facts; replaces what was said before."""
    facts.counted = [(node, change) for node, change in facts.counted if node not in reports]
    facts.uncounted = [(node, rail) for node, rail in facts.uncounted if node not in reports]
    for node, report in reports.items():
        since_ns = counted[node].since_ns
        facts.watched_s[node] = round((report.clock_ns - since_ns) / 1e9, 3) if since_ns else 0.0
        facts.counted += [(node, c) for c in counters.changes(facts.counters.get(node, {}), report.counters)]
        facts.uncounted += [(node, rail) for rail, own in report.counters.items() if not own]


def pair_phase(plan: Plan) -> Phase:
    """The whole phase; ends early where fewer than two nodes are left."""
    run = _Run(plan)
    yield from run.set_up()
    yield from run.ask_clocks()
    yield from run.ask_work()
    yield from run.ask_knocks(again=KNOCKS)
    if len(run.members) > 1:
        yield from run.bursts()
        yield from run.speeds()
        yield from run.links()
        yield from run.count_again()
        yield from run.adapt()
        yield from run.connections()
    yield from run.count_again()
    return run.facts


class _Run:
    """The state of one phase: the facts so far, who is still there, the number of the next step."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.limits = plan, plan.limits
        self.facts = PairFacts(
            nodes=plan.nodes,
            paths=plan.paths,
            addresses=plan.addresses,
            pools=dict(plan.pools),
            groups=dict(plan.groups),
            switches=plan.switches,
            ways=plan.steering.ways(),
            untested=dict(plan.untested),
            small=plan.limits.small,
            full=plan.limits.full,
            num_flows=8,
            port_bps=plan.port_bps,
            again_small=plan.limits.again_small,
        )
        self.members = list(range(len(plan.nodes)))
        self.planes = list(range(1, len(plan.paths))) or [0]
        self.step = 0
        self.closed = [(n, path) for n, own in enumerate(plan.addresses) for path, address in enumerate(own) if address]
        """(node, path) where nobody has shown yet that the node is there."""

    # ---- steps -------------------------------------------------------------------------------------------------------

    def ask(
        self,
        do: str,
        fields: Mapping[str, Any],
        *,
        of: Iterable[int] | None = None,
        quiet_ms: int = 0,
        limit_s: float = 10.0,
    ) -> Generator[Step, Answers, Answers]:
        """One step; nodes that did not answer are members no more. `quiet_ms`: how long late packets are awaited."""
        self.step += 1
        line = {"do": do, "step": self.step, **fields}
        if of is not None:
            line["only"] = list(of)
        # who sends without end keeps nobody from its answer: it comes before a node counts as lost
        most_ms = int(1000 * self.limits.lost_s * 2 / 3)
        late = {"do": "collect", "step": self.step, "quiet_ms": quiet_ms, "most_ms": most_ms} if quiet_ms else None
        expect = frozenset(self.members if of is None else of)
        answers = yield Step(line=line, expect=expect, collect=late, limit_s=limit_s)
        for node, why in answers.lost.items():
            self.facts.lost[node] = why
        self.facts.refused |= answers.refused
        self.members = [n for n in self.members if n not in self.facts.lost]
        return answers

    def set_up(self) -> Generator[Step, Answers, None]:
        """Sockets and ports."""
        plan = self.plan
        fields = {"run": secrets.randbits(63), "nodes": plan.nodes, "addresses": plan.addresses}
        if plan.counted:
            fields |= {"ports": [c.ports for c in plan.counted], "counters": counters.asked()}
        answers = yield from self.ask("setup", fields, limit_s=self.limits.start_s)
        for node, report in answers.reports.items():
            self.facts.unbound += [(node, path, str(error)) for path, error in report.errors]
            if plan.counted:
                self.facts.counters[node] = counters.merged(plan.counted[node].before, report.counters)
        empty = [0] * (len(plan.paths) + 1)
        peers = [[*r.ports, r.tcp] if (r := answers.reports.get(n)) else empty for n in range(len(plan.nodes))]
        steered = [[number, path] for number, (path, _) in self.facts.ways.items()]
        yield Step(line={"do": "peers", "peers": peers, "steered": steered}, expect=frozenset())
        yield Step(line={"do": "knock"}, expect=frozenset())

    def ask_clocks(self) -> Generator[Step, Answers, None]:
        """Each node's time of day: the exchange with the shortest round trip counts."""
        for _ in range(self.limits.clock_exchanges):
            answers = yield from self.ask("clock", {})
            for node, report in answers.reports.items():
                back = answers.at_ns.get(node, answers.asked_ns)
                rtt, middle = back - answers.asked_ns, (back + answers.asked_ns) // 2
                best = self.facts.clocks.get(node)
                if best is None or rtt < best.rtt_ns:
                    self.facts.clocks[node] = Clock(report.clock_ns - middle, rtt)

    def ask_work(self) -> Generator[Step, Answers, None]:
        """The same arithmetic everywhere at once; then alone, on those that took long.

        Who then still takes longer than the quickest's processor needed is asked twice, and the quickest beside them.
        """
        blocks = self.limits.work_blocks
        answers = yield from self.ask("work", {"blocks": blocks})
        took = {n: Work(r.wall_ns, r.cpu_ns, r.others_ns) for n, r in answers.reports.items()}
        if not took:
            return
        self.facts.work = {n: [w] for n, w in took.items()}
        middle = sorted(took.values(), key=lambda w: w.wall_ns)[(len(took) - 1) // 2]
        # where all waited for a processor nobody stands out, not even one that always has to
        usual_ns = min(middle.wall_ns, CROWDED * middle.cpu_ns or middle.wall_ns)
        slow = [n for n, w in took.items() if w.wall_ns > SLOW_SUSPECT * usual_ns]
        quickest = min(took, key=lambda n: took[n].wall_ns)
        enough_ns = SLOW_SUSPECT * took[quickest].cpu_ns
        slowest_first = sorted(slow, key=lambda n: -took[n].wall_ns)[:MAX_ALONE]
        yield from self.work_alone(slowest_first)
        still = [n for n in slowest_first if min(w.wall_ns for w in self.facts.work[n]) > enough_ns]
        if still:
            yield from self.work_alone([quickest, *still, quickest])

    def ask_knocks(self, again: int) -> Generator[Step, Answers, None]:
        """Which addresses are where their node is: the others have knocked there, and it tells what they said.

        Who does not show it may be a machine that has nothing to do with the run, and is sent one packet a test. Knocks
        may be lost as any packet: they are tried a few times.
        """
        for left in range(again, -1, -1):
            answers = yield from self.ask("knocked", {})
            secrets_of = {node: bytes.fromhex(report.secret) for node, report in answers.reports.items()}
            there = {
                (node, path)
                for node, report in answers.reports.items()
                for src, path, said in report.knocks
                if src != node and src in secrets_of and said == knock_of(secrets_of[src], node, path).hex()
            }
            self.closed = [place for place in self.closed if place not in there]
            if not left or not any(node in self.members for node, _ in self.closed):
                return
            yield Step(line={"do": "knock", "at": self.closed}, expect=frozenset())
            yield from self.ask("clock", {})  # when all have answered, all have knocked

    def work_alone(self, nodes: Sequence[int]) -> Generator[Step, Answers, None]:
        """More of the same arithmetic, one node after the other."""
        for node in nodes:
            answers = yield from self.ask("work", {"blocks": self.limits.work_blocks * ALONE_TIMES}, of=[node])
            for n, r in answers.reports.items():
                wall_ns, cpu_ns, others_ns = (ns // ALONE_TIMES for ns in (r.wall_ns, r.cpu_ns, r.others_ns))
                self.facts.work[n].append(Work(wall_ns, cpu_ns, others_ns, alone=True))

    def bursts(self) -> Generator[Step, Answers, None]:
        """Every directed pair, on every path that does not fail everywhere."""
        members = list(self.members)
        self.facts.members = tuple(members)
        paths = list(range(len(self.plan.paths)))
        # each port is to send and hear a sample in all, however few partners it has
        small = max(self.limits.small, -(-self.limits.sample // max(1, len(members) - 1)))
        smalls = dict.fromkeys(self.planes, small)
        for shifts in all_pairs(len(members)):
            burst = self._burst(self.limits.small, len(shifts)) | {"smalls": list(smalls.items())}
            fields = {"shifts": list(shifts), "members": members, "paths": paths, **burst}
            answers = yield from self.ask(
                "burst", fields, quiet_ms=self.limits.first_quiet_ms, limit_s=10.0 + 0.2 * len(shifts)
            )
            self._keep_bursts(answers, self.facts.bursts, smalls)
            self._count("burst", len(shifts))
            if shifts[-1] >= MIN_PARTNERS:
                paths = self._still_useful(paths, len(members), shifts[-1])

    def _still_useful(self, paths: list[int], num_members: int, last: int) -> list[int]:
        """Paths worth further rounds: not those that failed nearly everywhere, nor the address a dead plane breaks."""
        damaged = Counter(t.path for t in self.facts.bursts)
        dead = {p for p in paths if damaged[p] >= NEARLY_ALL * num_members * last}
        if dead and self.planes != [0]:
            dead.add(0)
        self.facts.stopped.update(dict.fromkeys(dead & set(paths), last))
        return [p for p in paths if p not in dead]

    def speeds(self) -> Generator[Step, Answers, None]:
        """A log-degree sample of pairs, every plane."""
        members = list(self.members)
        paths = [p for p in self.planes if p not in self.facts.stopped]
        for shift in log_degree(len(members)) if paths else ():
            fields = {"shifts": [shift], "members": members, "paths": paths, **self._speed()}
            answers = yield from self.ask("speed", fields, quiet_ms=self.limits.first_quiet_ms, limit_s=20.0)
            self._keep_speeds(answers, self.facts.speeds)
            self._count("speed")

    def links(self) -> Generator[Step, Answers, None]:
        """Each link between switches, by a burst and a stream over it alone; not in planes where nothing arrives."""
        alive = {t.path for t in self.facts.bursts if t.small + t.full}
        paths = [p for p in self.planes if p not in self.facts.stopped or p in alive]
        for tests in steered_rounds(self.plan.steering, self.members, paths):
            fields = {"pairs": tests, "to": self._addresses(tests), **self._burst(self.limits.link_small)}
            answers = yield from self.ask("burst", fields, quiet_ms=self.limits.first_quiet_ms)
            self._keep_bursts(answers, self.facts.bursts, dict.fromkeys(self.facts.ways, self.limits.link_small))
            fields = {"pairs": tests, "to": self._addresses(tests), **self._speed(), "pings": 0}
            answers = yield from self.ask("speed", fields, quiet_ms=self.limits.first_quiet_ms, limit_s=20.0)
            self._keep_speeds(answers, self.facts.speeds)
            self.facts.steered += [(t.src, t.dst, p) for t in tests for p in t.paths]
            self._count("steered")

    def _addresses(self, tests: Iterable[Test]) -> list[tuple[int, int, int, str]]:
        """Where the packets of steered tests are sent to."""
        ways, steering = self.facts.ways, self.plan.steering
        return [(t.src, t.dst, p, steering.address(t.dst, *ways[p])) for t in tests for p in t.paths if p in ways]

    def adapt(self) -> Generator[Step, Answers, None]:
        """Repeat what looked wrong, until every suspicion has its witnesses or is gone."""
        if any(node in self.members for node, _ in self.closed):
            yield from self.ask_knocks(again=1)
        for _ in range(max_adaptive_rounds(len(self.members))):
            tests = wanted(blames(self.facts, self.limits), self.facts)
            if not any(tests.values()):
                return
            if bursts := fit(tests[Means.BURST]):
                yield from self.repeat(bursts, self.limits.again_small)
            if samples := fit(tests[Means.SAMPLE], both_ways=True):
                yield from self.repeat(samples, self.limits.again_sample)
            if streams := fit(tests[Means.STREAM]):
                fields = {"pairs": streams, "to": self._addresses(streams), **self._speed(again=True)}
                answers = yield from self.ask("speed", fields, quiet_ms=self.limits.first_quiet_ms, limit_s=20.0)
                self._keep_speeds(answers, self.facts.speeds_again)
            self._count("adaptive")

    def repeat(self, tests: Sequence[Test], small: int) -> Generator[Step, Answers, None]:
        """Bursts once more, of so many small packets."""
        fields = {"pairs": tests, "to": self._addresses(tests), **self._burst(small)}
        answers = yield from self.ask("burst", fields, quiet_ms=self.limits.quiet_ms)
        self._keep_again(answers, tests, small)

    def connections(self) -> Generator[Step, Answers, None]:
        """A message over TCP on every directed pair; skipped where what is already known would make it wait in vain.

        A few that fail are tried again in quiet and with more time: a machine that was busy for a moment is no filter.
        """
        if any(b.symptom.is_burst for b in blames(self.facts, self.limits)):
            self.facts.tcp_skipped = True
            return
        members, wait_s = list(self.members), self.limits.tcp_s
        for shifts in all_pairs(len(members)):
            fields = {"shifts": list(shifts), "members": members, "paths": [0], "wait_s": wait_s, "closed": self.closed}
            answers = yield from self.ask("tcp", fields, limit_s=wait_s * (2 + len(shifts)) + self.limits.lost_s)
            for node, report in answers.reports.items():
                self.facts.tcp += [(node, dst, str(error)) for dst, error in report.errors]
                self.facts.tcp_tested += report.ok + len(report.errors)
        failed = [(src, dst) for src, dst, _ in self.facts.tcp]
        if failed and len(failed) <= MAX_TCP_AGAIN * len(members):
            wait_s *= TCP_AGAIN_TIMES
            most = max(Counter(src for src, _ in failed).values())
            tests = [Test(src, dst, (0,)) for src, dst in failed]
            fields = {"pairs": tests, "wait_s": wait_s, "closed": self.closed}
            who = {src for src, _ in failed} & set(self.members)
            answers = yield from self.ask("tcp", fields, of=who, limit_s=wait_s * (2 + most) + self.limits.lost_s)
            still = {(src, dst) for src, report in answers.reports.items() for dst, _ in report.errors}
            self.facts.tcp = [t for t in self.facts.tcp if t[0] not in answers.reports or t[:2] in still]

    def count_again(self) -> Generator[Step, Answers, None]:
        """The ports' counters once more: what they counted up to now.

        Asked also before anything is repeated: packets that a flapping link lost need no cause of their own.
        """
        if self.plan.counted:
            answers = yield from self.ask("counters", {})
            compare(self.facts, self.plan.counted, answers.reports)

    # ---- what came back ----------------------------------------------------------------------------------------------

    def _burst(self, small: int, num_shifts: int = 1) -> dict[str, Any]:
        limits = self.limits
        return {
            "small": small,
            "full": limits.full,
            "batch": limits.batch,
            "gap_us": limits.gap_us,
            "window": max(limits.batch, limits.window // num_shifts),
            "closed": self.closed,
        }

    def _speed(self, *, again: bool = False) -> dict[str, Any]:
        limits = self.limits
        return {
            "bytes": limits.again_bytes if again else limits.speed_bytes,
            "budget_ms": limits.again_budget_ms if again else limits.speed_budget_ms,
            "skip": limits.skip_bytes,
            "window": limits.window_bytes,
            "pings": limits.pings,
            "closed": self.closed,
        }

    def _keep_bursts(self, answers: Answers, into: list[Burst], smalls: Mapping[int, int]) -> None:
        for node, report in answers.reports.items():
            for src, path, small, full, whole, dark, here in report.bad:
                into.append(Burst(src, node, path, small, full, whole, dark, here, smalls.get(path, 0)))
            for path, num_bytes in report.full:
                self.facts.full_bytes[path] = max(num_bytes, self.facts.full_bytes.get(path, 0))
            self._keep_faults(node, report)

    def _keep_again(self, answers: Answers, tests: Sequence[Test], small: int) -> None:
        """A repeated burst is kept also when it was whole: it clears its pair."""
        broken: list[Burst] = []
        self._keep_bursts(answers, broken, {p: small for test in tests for p in test.paths})
        seen = {(t.src, t.dst, t.path) for t in broken}
        self.facts.again += broken
        whole = (small, self.limits.full, self.facts.num_flows, 0, 0, small)
        for test in tests:
            if test.dst in answers.reports:
                missing = [p for p in test.paths if (test.src, test.dst, p) not in seen]
                self.facts.again += [Burst(test.src, test.dst, p, *whole) for p in missing]

    def _keep_speeds(self, answers: Answers, into: list[Speed]) -> None:
        sent = {
            (src, dst, path): (rtt_ns, held_back)
            for src, report in answers.reports.items()
            for dst, path, rtt_ns, held_back in report.sent_to
        }
        for dst, report in answers.reports.items():
            for src, path, rate_bps, _ in report.rates:
                into.append(Speed(src, dst, path, rate_bps, *sent.get((src, dst, path), (0, 0))))
            self._keep_faults(dst, report)

    def _keep_faults(self, node: int, report: AgentReport) -> None:
        known = {(f.src, f.dst, f.path) for f in self.facts.faults} if report.errors else set()
        for dst, path, error in report.errors:
            if (node, dst, path) not in known:
                self.facts.faults.append(Fault(node, dst, path, str(error)))

    def _count(self, kind: str, num: int = 1) -> None:
        self.facts.rounds[kind] = self.facts.rounds.get(kind, 0) + num
