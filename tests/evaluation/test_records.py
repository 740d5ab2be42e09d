"""What a record says of the machine."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from study.evaluation import records


@pytest.mark.parametrize(
    ("cuda", "mps", "found"),
    [(True, False, "Some GPU"), (False, True, "mps"), (False, False, None)],
    ids=["cuda", "mps", "neither"],
)
def test_the_accelerator_is_the_one_that_torch_has(monkeypatch, cuda, mps, found):
    planted = SimpleNamespace(
        cuda=SimpleNamespace(is_available=lambda: cuda, get_device_name=lambda: "Some GPU"),
        backends=SimpleNamespace(mps=SimpleNamespace(is_available=lambda: mps)),
    )
    records.hardware()  # what was said before torch was there does not stay
    monkeypatch.setitem(sys.modules, "torch", planted)
    assert records.hardware()["accelerator"] == found
    assert records.record()["hardware"] == records.hardware()


def test_nobody_waits_for_torch():
    told = "import sys; from study.evaluation.records import hardware; print(hardware(), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert "'accelerator': None" in done.stdout
    assert done.stdout.endswith("False\n")
