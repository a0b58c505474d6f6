"""Let the router and the client run as soon as they have something to do, whatever the engines are busy with."""

from __future__ import annotations

import os


def run_promptly() -> bool:
    """Give this process the lowest real-time priority; return False where that isn't allowed (then nothing changes).

    Router and client stamp the times that everything else is held against. With two cores that engines keep busy, an
    ordinary process waits several milliseconds for one after it was woken, and a stamp would be late by that much.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(os.sched_get_priority_min(os.SCHED_RR)))
    except (OSError, AttributeError):
        return False
    return True
