"""A reproduction of T2MRec: rank the MCP servers that help with a software development task.

Eleven names are public: `Dataset`, `Split`, `System`, `load_data`, `load_split`, `load_system`, `run`, `evaluate`,
`compare`, `Results`, `table`. They are imported when they are first used, so `import study` is fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from study.analysis.report.results import Results
    from study.api import compare, evaluate, load_data, load_split, load_system, run, table
    from study.data.dataset import Dataset
    from study.data.splits import Split
    from study.evaluation.system import System

__version__ = "0.1.0"
__all__ = ["Dataset", "Results", "Split", "System", "compare", "evaluate", "load_data", "load_split"]
__all__ += ["load_system", "run", "table"]
CLASSES = {"Dataset": "study.data.dataset", "Results": "study.analysis.report.results"}  # the others are in study.api
CLASSES |= {"Split": "study.data.splits", "System": "study.evaluation.system"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'study' has no attribute {name!r}")
    return getattr(import_module(CLASSES.get(name, "study.api")), name)
