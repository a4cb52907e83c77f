"""A packet-level simulator of large multi-plane fabrics that runs the protocol core itself.

    scenario = sim.load(Path("perm.toml"))          # SpecError with every problem
    run = sim.simulate(scenario)                     # Results
    print(sim.text(run))

See README.md. Needs numpy and numba (`pip install 'fairlead[fabric]'`).
"""

from __future__ import annotations

from fairlead.fabric.sim.model import Scenario
from fairlead.fabric.sim.results import Results
from fairlead.fabric.sim.simulate import load, simulate
from fairlead.fabric.sim.summary import text

__all__ = ["Results", "Scenario", "load", "simulate", "text"]
