"""Joules that a machine's own counters tell: RAPL for processors, NVML for an accelerator. Both count the whole package
or card, whoever uses it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

POWERCAP = Path("/sys/class/powercap")
PROCESSOR, GPU = "processor", "gpu"
MICRO, MILLI = 1e-6, 1e-3


def joules() -> dict[str, float]:
    """The counters that can be read now: `PROCESSOR` (all packages), `GPU` (the first card, where torch sees one)."""
    found: dict[str, float] = {}
    for package in POWERCAP.glob("intel-rapl:*"):
        if package.name.count(":") > 1:  # parts of a package
            continue
        try:
            found[PROCESSOR] = found.get(PROCESSOR, 0.0) + MICRO * int((package / "energy_uj").read_text())
        except (OSError, ValueError):  # for root alone, on most machines
            found.pop(PROCESSOR, None)
            break
    if (card := _card()) is not None:
        found[GPU] = card
    return found


def used(before: Mapping[str, float]) -> dict[str, float]:
    """Joules since `before`. A counter that began anew in between is left out."""
    now = joules()
    spent = {name: round(now[name] - before[name], 1) for name in before.keys() & now.keys()}
    return {name: value for name, value in sorted(spent.items()) if value >= 0}


def _card() -> float | None:
    """Joules of the first card since its driver was loaded; None where nothing tells."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return float(MILLI * pynvml.nvmlDeviceGetTotalEnergyConsumption(pynvml.nvmlDeviceGetHandleByIndex(0)))
    except Exception:  # no package, no driver, an older card: there is no such counter
        return None
