import os
import subprocess
import sys

CODE = """
import os
from lab.priority import run_promptly
print(run_promptly(), os.sched_getscheduler(0) == os.SCHED_RR)
"""


def test_says_whether_it_was_allowed() -> None:
    told, is_realtime = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, check=True
    ).stdout.split()
    assert told == is_realtime
    # The caller's own priority is its own.
    assert os.sched_getscheduler(0) == os.SCHED_OTHER
