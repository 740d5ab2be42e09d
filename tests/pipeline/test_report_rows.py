"""What the report makes of single rows: which of them stand for a system, and whose parameters are counted."""

import pytest

from study.pipeline import report


def test_a_transfer_has_no_count_of_parameters():
    seeds = [{"parameters": 5}, {"parameters": 7}]
    assert report.parameters({"config": {"system": {"model": {"width": 2}}}, "seeds": seeds}) == 7
    assert report.parameters({"config": {"system": {"model": {"base": {"width": 2}}}}, "seeds": seeds}) is None


@pytest.mark.parametrize(
    ("name", "apart"),
    [("oracle_neighbour", True), ("msbpr_leaky", True), ("gdsrec_with_target", True), ("msbpr", False), ("new", False)],
)
def test_ceilings_and_faults_stand_for_no_system(name, apart):
    assert report._apart(report.system_settings(), name) == apart
