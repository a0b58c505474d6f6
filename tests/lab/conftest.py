import sys
from pathlib import Path

# `--import-mode=importlib` leaves test folders off the path; the helpers beside the tests are imported by name.
sys.path.insert(0, str(Path(__file__).parent))
