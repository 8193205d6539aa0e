"""The examples that run one train op, or hooks, and what they print is so."""

import os
import re

import pytest
import tensorflow.compat.v1 as tf

from conftest import EXAMPLES, run_here

NAMES = ["every_k.py", "monitored_session.py", "estimator.py", "microbatch.py"]


def assert_equals_whole_batches(printed, steps, k):
    assert ("{0} windows of {1} micro-batches against {0} whole batches:\n"
            .format(steps, k)) in printed
    assert float(re.search(r"largest difference between weights ([\d.e+-]+)\n",
                           printed).group(1)) < 1e-5


def test_every_k_runs_as_a_program():
    printed = run_here("every_k.py", "--k", "3", "--steps", "10")
    shown = re.findall(
        r"^run +(\d+), global step +(\d+): mean loss ([\d.]+)$", printed,
        re.MULTILINE)
    assert [(int(run), int(step)) for run, step, _ in shown] == [
        (6, 2), (12, 4), (18, 6), (24, 8), (30, 10)]
    assert float(shown[-1][2]) < float(shown[0][2])
    assert_equals_whole_batches(printed, 10, 3)


def test_monitored_session_goes_on_in_the_middle_of_a_window():
    printed = run_here("monitored_session.py", "--k", "3", "--steps", "4")
    assert re.findall(r"^starts at .*$", printed, re.MULTILINE) == [
        "starts at window 0, micro-batch 0",
        "starts at window 1, micro-batch 2"]
    assert re.findall(r"^mean loss of its (\d+) runs", printed,
                      re.MULTILINE) == ["5", "7"]
    assert_equals_whole_batches(printed, 4, 3)


def test_monitored_session_may_be_stopped_before_its_first_run():
    assert_equals_whole_batches(
        run_here("monitored_session.py", "--k", "1", "--steps", "1"), 1, 1)


@pytest.mark.skipif(not hasattr(tf, "estimator"),
                    reason="this TensorFlow has no tf.estimator")
def test_estimator_counts_windows():
    printed = run_here("estimator.py", "--k", "3", "--steps", "4")
    assert "4 windows of 3 x 32 images: global step 4, loss " in printed
    assert "4 windows of 1 x 96 images: global step 4, loss " in printed
    assert_equals_whole_batches(printed, 4, 3)


@pytest.mark.skipif(hasattr(tf, "estimator"),
                    reason="this TensorFlow has tf.estimator")
def test_estimator_says_that_there_is_none():
    assert run_here("estimator.py") == (
        "TensorFlow {} has no Estimators; 2.15 is the last that has.\n".format(
            tf.__version__))


def test_microbatch_trains_on_the_gradient_of_the_whole_batch():
    printed = run_here("microbatch.py", "--k", "3", "--steps", "10", "--batch", "50")
    shown = re.findall(r"^step +(\d+): mean loss ([\d.]+)$", printed,
                       re.MULTILINE)
    assert [int(step) for step, _ in shown] == [2, 4, 6, 8, 10]
    assert float(shown[-1][1]) < float(shown[0][1])
    gradient, difference = map(float, re.search(
        r"^3 micro-batches against one batch of 50:\nlargest gradient (\S+), "
        r"largest difference (\S+)$", printed, re.MULTILINE).groups())
    assert difference < 1e-5 * gradient


@pytest.mark.parametrize("name", NAMES)
def test_help_names_each_option(name):
    printed = run_here(name, "--help", status=0)
    for option in ("--k", "--steps"):
        assert option in printed


@pytest.mark.parametrize("name", NAMES)
def test_a_number_below_one_is_refused(name):
    assert "must be 1 or more" in run_here(name, "--k", "0", status=2)


@pytest.mark.parametrize("name", NAMES)
def test_the_example_is_under_80_lines_of_80_columns(name):
    with open(os.path.join(EXAMPLES, name)) as file:
        lines = file.read().split("\n")
    assert len(lines) <= 80
    assert max(len(line) for line in lines) <= 80
