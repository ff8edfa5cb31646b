"""Runs `moorage` as `python -m moorage.cli`, for environments without the installed script."""

from __future__ import annotations

import sys

from .main import run

sys.exit(run())
