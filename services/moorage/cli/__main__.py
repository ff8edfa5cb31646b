"""`python -m moorage.cli`: the same as `moorage`, where no script is installed."""

from __future__ import annotations

import sys

from .main import run

sys.exit(run())
