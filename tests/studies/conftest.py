"""Makes the fakes importable by name, here and in the processes that the tests spawn."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
