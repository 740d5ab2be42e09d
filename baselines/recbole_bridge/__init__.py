"""RecBole's models as systems of this study; everything their runs depend on stands in this folder."""

from baselines.recbole_bridge.bridge import RecBole

__all__ = ["RecBole"]
