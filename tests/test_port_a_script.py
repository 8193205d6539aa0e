"""The example that ports a script runs, and what it prints is so."""

import os
import re

import pytest

from conftest import EXAMPLES, run_here

EXAMPLE = os.path.join(EXAMPLES, "port_a_script.py")


@pytest.fixture(scope="module")
def printed():
    """What a run of 10 windows prints."""
    return run_here("port_a_script.py", "--steps", "10")


def test_port_leads_to_the_weights_of_the_script_and_of_whole_batches(printed):
    assert "largest difference of weights, 10 windows of 4\n" in printed
    differences = dict(re.findall(r"^  after and (.*?): +(\S+)$", printed,
                                  re.MULTILINE))
    assert set(differences) == {"before", "whole batches"}
    # The same sums, but for rounding.
    assert all(float(one) < 1e-6 for one in differences.values())


def test_port_counts_the_lines_of_both_scripts(printed):
    counted = re.findall(r"^lines that accumulate, (\w+): +(\d+)$", printed,
                         re.MULTILINE)
    with open(EXAMPLE) as file:
        source = file.read()
    for name, number in counted:
        # From below its docstring to its return.
        body = re.search(r'def {}\(.*?"""\n(.*?)\n\n\n'.format(name), source,
                         re.DOTALL).group(1)
        assert body.splitlines()[-1].startswith("    return")
        assert len(body.splitlines()) == int(number)
    assert [name for name, _ in counted] == ["before", "after"]
    assert int(counted[1][1]) < int(counted[0][1]) / 3


def test_port_help_names_its_option_and_numbers_below_one_are_refused():
    assert "--steps" in run_here("port_a_script.py", "--help", status=0)
    assert "must be 1 or more" in run_here(
        "port_a_script.py", "--steps", "0", status=2)


def test_port_is_under_80_lines_of_at_most_80_columns(printed):
    with open(EXAMPLE) as file:
        lines = file.read().splitlines()
    assert len(lines) < 80
    assert [line for line in lines + printed.splitlines()
            if len(line) > 80] == []
