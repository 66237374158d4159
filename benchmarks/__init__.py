"""What himach is compared with: scripts of other tools, as their documentation shows them, and what they need.

``himach bench peers`` runs these. They are files of their own so that anybody can read whether a tool is used well, and
run it alone. `FOLDER` is where they are installed.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["FOLDER"]

FOLDER = Path(__file__).parent
