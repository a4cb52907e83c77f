"""When a group of ranks is over: nobody waits for a hang, and nobody is called hung who only takes its time."""

from __future__ import annotations

import pytest

from fairlead.launch import Beat, CannotStart, Ended, Held, Patience, Said
from fairlead.launch.watch import LAST_WORDS_S, Watch

FOUR = Patience(ranks=4)


def said(rank, at_s, what="phase", **fields):
    return Said(rank=rank, node=f"n{rank}", at_s=at_s, what=what, fields=fields)


def phase(made, name, at_s, ranks=range(4)):
    for rank in ranks:
        made.hear(said(rank, at_s, phase=name))


def beat(made, ranks, until, since=5.0, state=""):
    now = since
    while now <= until:
        for rank in ranks:
            made.hear(Beat(rank=rank, node="", at_s=now, state=state))
        now += 0.5


def end(rank, at_s, state="done"):
    return Ended(rank=rank, node="", at_s=at_s, state=state, rc=0 if state == "done" else 1, error="")


def watch(phases=("import", "rendezvous"), at=5.0, limit_s=10_000.0, patience=FOUR):
    """Ranks that went through these phases and are in the last since `at`."""
    made = Watch(patience, limit_s)
    for i, name in enumerate(phases):
        phase(made, name, at if i == len(phases) - 1 else 0.5 + i * 0.1)
    return made


def test_while_they_step_on_nothing_is_over():
    made = watch()
    at = 5.0
    for name in ("join", "ddp", "reduce", "split"):
        at += FOUR[made.ranks[0].phase] - 1
        beat(made, range(4), at, at - 1)
        phase(made, name, at)
        assert made.over(at + 0.5) is None


def test_a_group_that_takes_a_minute_to_join_is_not_over_and_then_goes_on():
    """55 s for eight GPUs are published for NCCL."""
    made = watch(("import", "rendezvous", "join"))
    beat(made, range(4), 65.0)
    assert made.over(65.0) is None
    for rank in range(4):
        made.hear(said(rank, 65.0, "joined", s=60.0))
    phase(made, "ddp", 65.0)
    assert made.over(66.0) is None


@pytest.mark.parametrize("name", ["import", "rendezvous", "join"])
def test_each_phase_has_its_own_patience_and_where_it_ends_the_phase_is_named(name):
    made = watch(("import", "rendezvous", name) if name != "import" else ("import",))
    beat(made, range(4), 5.0 + FOUR[name] + 2)
    assert made.over(5.0 + FOUR[name] - 0.5) is None
    over = made.over(5.0 + FOUR[name] + 0.5)
    assert (over.kind, over.ranks) == ("hang", ())
    assert name in over.why


@pytest.mark.parametrize(("joined_s", "waits_s"), [(0.2, 6.08), (14.0, 14.0), (90.0, 30.08)])
def test_a_step_gets_as_long_as_the_longest_phase_before_it_within_bounds(joined_s, waits_s):
    """Six seconds where all went quickly; on a machine that needed 14 s to join, 14; never more than the table has."""
    made = watch(("import", "rendezvous", "join"), at=1.0)
    at = 1.0 + joined_s
    for name in ("card", "reduce"):
        phase(made, name, at)
    beat(made, range(4), at + waits_s + 2, since=at)
    assert made.over(at + waits_s - 0.5) is None
    over = made.over(at + waits_s + 0.5)
    assert (over.kind, over.ranks) == ("hang", ())
    assert "reduce" in over.why


def test_what_a_stage_plans_to_do_without_a_word_is_waited_for_twice_over():
    made = watch(("import", "rendezvous", "join", "reduce"), patience=Patience(ranks=4, planned_s=20.0))
    beat(made, range(4), 50.0)
    assert made.over(44.5) is None
    assert made.over(45.5).kind == "hang"


def test_where_no_rank_gives_a_sign_of_life_the_machine_is_busy_and_a_quick_group_is_waited_for_longer():
    made = watch(("import", "rendezvous", "join", "reduce"))
    assert made.over(5.0 + FOUR["step"] - 0.5) is None
    beat(made, range(4), 5.0 + FOUR["step"] - 0.2, since=5.0 + FOUR["step"] - 0.2)
    assert made.over(5.0 + FOUR["step"] - 0.1).kind == "hang"


def test_what_this_side_did_not_listen_to_is_nobodys_silence():
    made = watch(("import", "rendezvous", "join", "reduce"))
    beat(made, [0, 1, 2], 20.0, since=20.0)
    assert made.over(20.0).kind == "silent"
    made.resumed = 19.9
    assert made.over(20.0) is None
    beat(made, [0, 1, 2], 24.0, since=20.0)
    assert made.over(24.0).ranks == (3,), "it stayed silent"
    beat(made, range(4), 26.5, since=24.0)
    assert made.over(25.5) is None
    assert made.over(26.5).kind == "hang"


def test_who_is_behind_the_others_gets_as_long_again_as_the_quickest_needed():
    made = watch(("import", "rendezvous", "join"))
    for rank in range(3):
        made.hear(said(rank, 15.0, "joined", s=10.0))
    phase(made, "ddp", 15.0, range(3))
    beat(made, range(4), 26.0)
    assert made.over(24.5) is None
    over = made.over(25.5)
    assert (over.kind, over.ranks) == ("behind", (3,))
    assert "rank 3 made no step for 10 s (join)" in over.why


def test_in_a_phase_that_each_goes_through_alone_the_slowest_is_waited_for():
    """A node that reads torch from a cold file system, while the others have it in memory."""
    made = Watch(FOUR, 100.0)
    phase(made, "import", 0.5)
    phase(made, "rendezvous", 4.0, range(3))
    beat(made, range(4), 4.0 + FOUR["import"] + 2, 4.0)
    assert made.over(4.0 + FOUR["import"] - 1) is None
    over = made.over(4.0 + FOUR["import"] + 1)
    assert (over.kind, over.ranks) == ("behind", (3,))


def test_a_rank_that_is_not_at_the_rendezvous_is_named_by_the_store():
    made = watch()
    made.hear(said(0, 6.0, "missing", num=2, ranks="1,3"))
    beat(made, range(4), 5.0 + FOUR["rendezvous"] + 1)
    assert made.over(5.0 + FOUR["rendezvous"] - 0.5) is None
    over = made.over(5.0 + FOUR["rendezvous"] + 0.5)
    assert (over.kind, over.ranks) == ("rendezvous", (1, 3))


def test_what_the_store_says_is_no_step():
    made = watch()
    for i in range(60):
        made.hear(said(0, 5.0 + i, "missing", num=1, ranks="3"))
    assert made.over(5.0 + FOUR["rendezvous"] + 0.5) is not None


def test_ranks_that_never_spoke_are_named_after_the_patience_for_a_start():
    made = Watch(FOUR, 100.0)
    phase(made, "import", 1.0, range(3))
    beat(made, range(3), FOUR["start"] + 2, 1.0)
    assert made.over(FOUR["start"]) is None
    over = made.over(1.0 + FOUR["start"] + 0.5)
    assert (over.kind, over.ranks) == ("absent", (3,))


def test_in_a_container_the_start_may_take_longer():
    made = Watch(Patience(ranks=4, in_container=True), 100.0)
    assert made.over(FOUR["start"] + 1) is None
    assert made.over(601.0).kind == "absent"


def test_one_silent_task_while_others_beat_is_a_hang_within_seconds_in_any_phase():
    for phases in (("import",), ("import", "rendezvous", "join")):
        made = watch(phases)
        beat(made, [0, 1, 2], 5.0 + FOUR.silent_s + 0.5)
        over = made.over(5.0 + FOUR.silent_s + 0.6)
        assert (over.kind, over.ranks) == ("silent", (3,))


def test_where_all_are_silent_the_machine_is_busy_and_nobody_is_named():
    assert watch().over(5.0 + FOUR.silent_s + 1.0) is None


@pytest.mark.parametrize(("state", "row"), [("T", "stopped"), ("t", "stopped"), ("D", "stuck")])
def test_a_body_that_its_task_finds_stopped_is_named_though_the_task_beats(state, row):
    made = watch(("import", "rendezvous", "join"))
    limit_s = FOUR[row]
    beat(made, [0, 1, 2], 6.0 + limit_s)
    beat(made, [3], 6.0 + limit_s - 0.5, since=6.0, state=state)
    assert made.over(6.0 + limit_s + 0.4) is None, "it was not seen so for long enough"
    beat(made, [3], 6.0 + limit_s, since=6.0 + limit_s, state=state)
    over = made.over(6.0 + limit_s + 0.5)
    assert (over.kind, over.ranks) == (row, (3,))


def test_a_body_that_was_stopped_for_one_look_is_well():
    made = watch()
    beat(made, range(4), 6.0)
    made.hear(Beat(rank=3, node="", at_s=6.1, state="T"))
    beat(made, range(4), 8.0, since=6.6)
    assert made.over(8.0) is None


def test_what_it_does_once_it_stands_has_a_limit():
    made = watch(("import", "rendezvous", "join"), limit_s=20.0)
    for rank in range(4):
        made.hear(said(rank, 10.0, "joined", s=5.0))
    for i in range(30):
        phase(made, "reduce", 10.0 + i)
    assert made.over(29.5) is None
    assert made.over(30.5).kind == "limit"


@pytest.mark.parametrize(("state", "over"), [("failed", True), ("done", False)])
def test_after_a_bad_end_the_others_have_a_moment_for_their_last_words(state, over):
    made = watch()
    made.hear(end(1, 6.0, state))
    assert made.over(6.0 + LAST_WORDS_S - 0.1) is None
    assert bool(made.over(6.0 + LAST_WORDS_S + 0.1)) is over


def test_where_others_have_not_spoken_yet_they_are_heard_first_as_one_death_is_not_everybodys():
    made = Watch(FOUR, 100.0)
    made.hear(end(1, 1.0, "failed"))
    phase(made, "import", 1.5, [0])
    assert made.over(1.0 + LAST_WORDS_S + 0.5) is None
    phase(made, "import", 3.0, [2, 3])
    assert made.over(3.1).kind == "ended"
    alone = Watch(FOUR, 100.0)
    alone.hear(end(1, 1.0, "failed"))
    assert alone.over(1.0 + FOUR["behind"] + 0.1).kind == "ended"


def test_one_that_cannot_start_ends_the_group_but_the_others_may_say_how_they_fare():
    """A module that is not there shows at once; one that is, on a slow file system, after minutes."""
    made = watch(("import",))
    made.hear(CannotStart(rank=2, node="n2", at_s=6.0, why="no-torch", kind="ModuleNotFoundError", text="x"))
    made.hear(end(2, 6.1, "failed"))
    assert made.over(6.0 + FOUR["import"] - 0.1) is None
    assert made.over(6.0 + FOUR["import"] + 0.2).kind == "ended"
    phase(made, "rendezvous", 70.0, [0, 1, 3])
    assert made.over(70.1).kind == "ended", "all have been heard"


def test_who_imports_from_a_file_system_that_is_slow_is_not_stuck():
    made = watch(("import",))
    beat(made, range(4), 5.0 + 2 * FOUR["stuck"], state="D")
    assert made.over(5.0 + 2 * FOUR["stuck"] + 0.1) is None
    beat(made, [0, 1, 2], 6.0 + FOUR["import"], since=5.0 + 2 * FOUR["stuck"])
    beat(made, [3], 6.0 + FOUR["import"], since=5.0 + 2 * FOUR["stuck"], state="D")
    phase(made, "rendezvous", 100.0, [0, 1, 2])
    assert made.over(6.0 + FOUR["import"] + 0.1).kind == "stuck"


def test_those_that_are_done_are_waited_for_no_more():
    made = watch()
    phase(made, "done", 6.0, range(3))
    beat(made, [3], 9.0)
    assert made.over(9.5) is None


def test_a_step_that_waits_is_given_more_time_than_one_that_hangs_and_less_than_for_ever():
    made = Watch(FOUR, 100.0)
    made.hear(Held(at_s=1.0, job="12", said="srun: job 12 queued and waiting for resources"))
    assert made.over(1.0 + FOUR["pending"]) is None
    assert made.over(1.5 + FOUR["pending"]).kind == "held"
    phase(made, "start", 30.0, [0])
    assert made.held is None


def test_patience_grows_with_the_group():
    small, large = Patience(ranks=8), Patience(ranks=8192)
    assert small["join"] >= 60
    assert large["join"] > 2048 * 0.5
    assert large["rendezvous"] > small["rendezvous"]
    assert large["beat"] > small["beat"] == pytest.approx(0.5, abs=0.01)
    assert large.silent_s > 2 * large["beat"]
    assert large.after("reduce", 0.0) > 20 * small.after("reduce", 0.0)


def test_the_cluster_file_may_say_otherwise():
    patience = Patience(ranks=8, own={"join": 12.0, "step": 7.0})
    assert (patience["join"], patience["reduce"], patience["ddp"]) == (12.0, 7.0, 7.0)
    assert patience.after("reduce", 1.0) == patience.after("reduce", 60.0) == 7.0
    assert patience.after("join", 60.0) == 12.0


# ---- a rank that lies about itself -----------------------------------------------------------------------------------


def claims(made, rank, names, at_s):
    for name in names:
        phase(made, name, at_s, [rank])


def test_one_that_claims_to_be_far_ahead_makes_nobody_late():
    """Rank 3 says that it has come through all: the others, who import, get what an import may take."""
    made = watch(("import",))
    claims(made, 3, ("rendezvous", "join", "ddp", "reduce"), 6.0)
    made.hear(said(3, 6.0, "joined", s=0.1))
    beat(made, range(4), 6.0 + FOUR["import"] + 2, 6.0)
    assert made.joined_at is None
    assert made.over(6.0 + FOUR["import"] - 1) is None
    over = made.over(6.0 + FOUR["import"] + 1)
    assert (over.kind, over.ranks) == ("hang", ())


def test_nor_does_one_that_claims_so_in_a_phase_that_ranks_leave_together():
    made = watch(("import", "rendezvous", "join"))
    claims(made, 3, ("ddp", "reduce", "done"), 6.0)
    beat(made, range(4), 6.0 + FOUR["join"] + 2, 6.0)
    assert made.over(6.0 + FOUR["join"] - 1) is None
    over = made.over(6.0 + FOUR["join"] + 1)
    assert (over.kind, over.ranks) == ("hang", ())


def test_two_nodes_that_are_ahead_are_believed():
    made = watch(("import", "rendezvous", "join"))
    for rank in (2, 3):
        claims(made, rank, ("ddp",), 6.0)
    beat(made, range(4), 6.0 + FOUR["behind"] + 2, 6.0)
    over = made.over(6.0 + FOUR["behind"] + 1)
    assert (over.kind, over.ranks) == ("behind", (0, 1))


def test_one_whose_phases_nobody_knows_takes_no_time_from_the_others():
    made = watch(("import", "rendezvous", "join"))
    made.ranks[0].phase = "what no rank says"
    beat(made, range(4), 5.0 + FOUR["join"] + 2)
    assert made.over(5.0 + FOUR["join"] - 1) is None


@pytest.mark.parametrize(("here", "over"), [((0, 1, 2), ("rendezvous", (3,))), ((0, 1, 2, 3), ("hang", ()))])
def test_rank_0_accuses_nobody_who_says_that_it_is_there(here, over):
    made = watch()
    for rank in here:
        made.hear(said(rank, 5.0, "here"))
    made.hear(said(0, 6.0, "missing", num=2, ranks="2-3"))
    beat(made, range(4), 6.0 + FOUR["rendezvous"] + 2)
    found = made.over(6.0 + FOUR["rendezvous"] + 1)
    assert (found.kind, found.ranks) == over
