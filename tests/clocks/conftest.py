"""Makes the helpers of this folder and the span builder importable."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "analysis")]
