"""Labelled incidents: logs of whole clusters in documented line formats, what accounting says of the job, and the truth.

Written from the formats that vendors, kernels and Slurm document, by an author who had not read a signature of
`fairlead.logs.diagnose`. `python -m support.incidents FOLDER` writes them as folders (`write` says in which form).
"""

from support.incidents.hardware import HARDWARE
from support.incidents.healthy import healthy
from support.incidents.jobs import JOBS
from support.incidents.machine import Incident
from support.incidents.network import NETWORK
from support.incidents.system import SYSTEM

__all__ = ["INCIDENTS", "Incident", "healthy"]

INCIDENTS = {each.__name__.replace("_", "-"): each for each in (*HARDWARE, *NETWORK, *SYSTEM, *JOBS)}
"""Name -> what happened, told to an `Incident`."""
