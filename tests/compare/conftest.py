"""Makes the synthetic runs and the span builder importable by the tests of this folder."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
for folder in (HERE, HERE.parent / "analysis"):
    sys.path.insert(0, str(folder))
