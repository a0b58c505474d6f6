"""Makes the span builder and the builder of conversations importable by the tests of this folder."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "analysis")]
