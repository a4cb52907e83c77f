"""The scripts that slurmd runs: health, prolog, epilog. Pure.

What they do and why is said in docs/howto/slurm-prolog.md; a test holds its blocks and these texts together.
"""

from __future__ import annotations

from fairlead.plan.table import PlanTable
from fairlead.plan.wanted import Planned

HEALTH_INTERVAL_S = 300
AUDIT_EVERY_MIN = 1440
MAX_ARCHIVED_BYTES = 16 << 20
"""Of a job's output, the last so many bytes are kept."""


def scripts(said: PlanTable) -> list[Planned]:
    """health.sh, prolog.sh, epilog.sh."""
    return [
        Planned(
            path="slurm/health.sh",
            text=health(said),
            about="HealthCheckProgram: drains and gives back",
            executable=True,
        ),
        Planned(path="slurm/prolog.sh", text=prolog(said), about="Prolog: keeps a job off a bad node", executable=True),
        Planned(
            path="slurm/epilog.sh",
            text=epilog(said),
            about="Epilog: keeps the job's files, looks again",
            executable=True,
        ),
    ]


def health(said: PlanTable) -> str:
    """HealthCheckProgram: it drains and gives back by itself, so its status says nothing to Slurm."""
    return (
        _head(said)
        + f"""
# Once a day, what may be wrong although jobs run: into the journal. It drains nothing.
seen=/run/fairlead-audit.seen
[ -n "$(find $seen -mmin -{AUDIT_EVERY_MIN} 2>/dev/null)" ] || {{
    touch $seen
    timeout 30 {said.program} audit --root / --spec "$FAIRLEAD_SPEC" --quiet 2>&1 | logger -t fairlead-audit
}}

exec {said.program} preflight --here --every {HEALTH_INTERVAL_S} --drain --undrain --yes \\
    --runs {said.runs} --prom /var/lib/node_exporter/fairlead.prom --quiet >/dev/null 2>&1
"""
    )


def prolog(said: PlanTable) -> str:
    """Prolog: another status than 0 drains the node and puts the job back."""
    return (
        _head(said)
        + f"""{said.program} preflight --here --prolog --every {HEALTH_INTERVAL_S} --drain --yes --quiet \\
    --runs {said.runs} >/dev/null 2>&1
[ $? -ne 3 ]   # 3: the node is bad and out of Slurm. Nothing else keeps a job away
"""
    )


def epilog(said: PlanTable) -> str:
    """Epilog: the job's files first, as nothing that follows may lose them."""
    return (
        _head(said)
        + (_archive(said.archive) if said.archive else "")
        + f"""{said.program} preflight --here --prolog --drain --yes --quiet --runs {said.runs} >/dev/null 2>&1
[ $? -ne 3 ]
"""
    )


def _head(said: PlanTable) -> str:
    return f"""#!/bin/sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin FAIRLEAD_SPEC={said.cluster_file}
"""


def _archive(place: str) -> str:
    """Script, record, environment and output of a job. Its output is read as the user, who names the files."""
    return f"""
# The job's script, record, environment and end of output, kept where they outlive the node. Its first node does it.
keep() {{
    job=$(timeout 10 scontrol -o show job "$SLURM_JOB_ID") || return
    field() {{ printf '%s\\n' "$job" | tr ' ' '\\n' | sed -n "s/^$1=//p" | head -n 1; }}
    [ "$(field BatchHost)" = "${{SLURMD_NODENAME:-$(hostname -s)}}" ] || return
    umask 077
    to={place}/$(date +%Y-%m)/$SLURM_JOB_ID
    mkdir -p "$to" || return
    printf '%s\\n' "$job" >"$to/job"
    timeout 10 scontrol write batch_script "$SLURM_JOB_ID" "$to/script" >/dev/null 2>&1
    timeout 10 sacct -j "$SLURM_JOB_ID" --env-vars >"$to/env" 2>/dev/null
    for name in StdOut StdErr; do
        from=$(field $name)
        [ -n "$from" ] || continue
        timeout 60 runuser -u "$SLURM_JOB_USER" -- tail -c {MAX_ARCHIVED_BYTES} -- "$from" >"$to/$name" 2>/dev/null
    done
    chown -R "$SLURM_JOB_UID" "$to"
}}
keep </dev/null >/dev/null 2>&1

"""
