"""Any small fabric, transport, load and trouble: nothing vanishes, nothing is placed twice, threads change nothing."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from fairlead.fabric.sim import runner
from fairlead.fabric.sim.engine import layout as at
from support.depth import cases
from support.sim_runs import fingerprint, play, under_way

few = st.integers(1, 3)
SHARES = st.sampled_from([0.01, 0.2, 1.0])
TIMES = st.sampled_from([0, 3, 10, 40])


@st.composite
def fabrics(draw: st.DrawFn) -> tuple[str, int, int, int, int]:
    """A fabric as text, then its planes, T0s, T1s and NICs."""
    planes, t0, t1, hosts = draw(few), draw(few), draw(few), draw(st.integers(2, 4))
    if draw(st.booleans()):
        return (
            f"[topology]\nplanes = {planes}\nt0 = {t0}\nt1 = {t1}\nhosts_per_t0 = {hosts}\n",
            planes,
            t0,
            t1,
            t0 * hosts,
        )
    pods = draw(st.integers(2, 3))
    tree = f'[topology]\nkind = "fat-tree"\npods = {pods}\ncores = {t1 * 2}\nt0 = {t0}\nt1 = {t1}\n'
    tree += f"hosts_per_t0 = {hosts}\n"
    return tree, 1, pods * t0, pods * t1, pods * t0 * hosts


@st.composite
def faults(draw: st.DrawFn, planes: int, t0: int, t1: int, nics: int) -> str:
    begin = draw(TIMES)
    until = draw(st.sampled_from([0, begin + 1, begin + 30]))
    head = f"[[fault]]\nat_us = {begin}\nuntil_us = {until}\nplane = {draw(st.integers(0, planes - 1))}\n"
    return head + draw(
        st.one_of(
            st.builds('kind = "t0"\nt0 = {}\n'.format, st.integers(0, t0 - 1)),
            st.builds('kind = "t1"\nt1 = {}\n'.format, st.integers(0, t1 - 1)),
            st.builds('kind = "port"\nnic = {}\n'.format, st.integers(0, nics - 1)),
            st.builds('kind = "loss"\nloss = {}\n'.format, SHARES),
            st.builds('kind = "loss"\nnic = {}\nloss = {}\n'.format, st.integers(0, nics - 1), SHARES),
            st.builds('kind = "slow"\nnic = {}\nrate = 0.1\n'.format, st.integers(0, nics - 1)),
        )
    )


@st.composite
def runs(draw: st.DrawFn) -> str:
    fabric, planes, t0, t1, nics = draw(fabrics())
    pfc = draw(st.integers(0, 3)) == 0
    kind = "roce" if pfc else draw(st.sampled_from(["mrc", "mrc", "uec", "roce"]))
    queues = "[queues]\npfc = true\n" if pfc else f"[queues]\ntrim = {draw(st.sampled_from(['true', 'false']))}\n"
    size = draw(st.sampled_from([1, 4096, 100_000, 400_000]))
    to = draw(st.integers(0, nics - 1))
    traffic = draw(
        st.sampled_from([
            f'kind = "permutation"\nsize_bytes = {size}\nqps = {draw(few)}\n',
            f'kind = "incast"\nto = {to}\nsize_bytes = {size}\n',
            f'kind = "send-recv"\nsize_bytes = {size}\nmessages = 3\n',
            f'kind = "ring-all-reduce"\nsize_bytes = {size}\n',
        ])
    )  # fmt: skip
    trouble = "".join(draw(st.lists(faults(planes, t0, t1, nics), max_size=3)))
    end = f"[run]\nuntil_us = 3000\nseed = {draw(st.integers(0, 1 << 30))}\n"
    return fabric + f'[transport]\nkind = "{kind}"\n' + queues + f"[[traffic]]\n{traffic}" + trouble + end


@given(text=runs(), threads=st.integers(2, 3))
@settings(max_examples=cases(120), deadline=None, suppress_health_check=list(HealthCheck))
def test_any_run(text: str, threads: int) -> None:
    played = play(text)
    c, tables = played.results.counters, played.world.tables
    event(str(played.results.end.ended))
    assert c.sent_by_nics == c.delivered + c.dropped + c.lost + c.refused + under_way(played)
    placed, flows = tables["receivers"][:, at.RC_BYTES], tables["flows"][played.world.rows.flow_row, at.FL_RECEIVER]
    work = played.setup.workload
    sizes = [int(work.size[work.flow == flow].sum()) for flow in range(work.num_flows)]
    assert (placed[flows] <= sizes).all()
    if played.results.end.ended == "done":
        assert (placed[flows] == sizes).all()
    assert tables["goodput"].sum() == placed.sum()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "PARALLEL_SECONDS", 0.0)  # wake the other threads for every window
        assert fingerprint(play(text, threads=threads)) == fingerprint(played)
