"""The examples run, and what they print is so."""

import os
import re
import subprocess
import sys

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import tf1accum

EXAMPLES = os.path.join(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "examples")
# Variables of the network that are trained: two layers of 3x3 kernels with a
# beta and a gamma for each channel, and one that is fully connected.
TRAINED = (9 * 16 + 2 * 16) + (9 * 16 * 32 + 2 * 32) + (4 * 4 * 32 * 10 + 10)
MOVING = 2 * 16 + 2 * 32


def run_digits(*arguments):
    package = os.path.dirname(os.path.dirname(tf1accum.__file__))
    return subprocess.run(
        [sys.executable, os.path.join(EXAMPLES, "digits.py")]
        + list(arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        universal_newlines=True, env=dict(os.environ, PYTHONPATH=package))


@pytest.fixture(scope="module")
def short_run(tmp_path_factory):
    """What a run of 60 windows of 2 prints, and the folder it is given."""
    folder = tmp_path_factory.mktemp("digits") / "made" / "by the example"
    run = run_digits("--k", "2", "--steps", "60", "--logdir", str(folder))
    assert run.returncode == 0, run.stderr
    return run.stdout, str(folder)


def number_after(text, printed):
    return float(re.search(re.escape(text) + r"\s*([\d.,e+-]+)",
                           printed).group(1).replace(",", ""))


def test_digits_shows_the_loss_as_it_goes_and_the_loss_falls(short_run):
    printed, _ = short_run
    shown = re.findall(r"^window +(\d+) of 60: mean loss (.*)$", printed,
                       re.MULTILINE)
    assert [int(window) for window, _ in shown] == list(range(6, 61, 6))
    # Ten classes, none of them known: log 10 = 2.3.
    assert float(shown[0][1]) > .3
    assert float(shown[-1][1]) < float(shown[0][1]) / 2


def test_digits_reads_at_least_nine_of_ten_digits_after_few_windows(short_run):
    printed, _ = short_run
    assert number_after("test accuracy:", printed) > .9


def test_digits_by_default_reads_at_least_97_of_100_digits():
    run = run_digits()
    assert run.returncode == 0, run.stderr
    assert "a window is 4 micro-batches" in run.stdout
    assert number_after("test accuracy:", run.stdout) >= .97
    assert number_after("difference between weights", run.stdout) < 1e-6


def test_digits_leaves_a_checkpoint_of_the_model_alone(short_run):
    printed, folder = short_run
    path = tf.train.latest_checkpoint(folder)
    assert "checkpoint: {}\n".format(path) in printed
    shapes = dict(tf.train.list_variables(path))
    layers = ["conv1/kernel", "conv2/kernel", "scores/kernel", "scores/bias"]
    norms = ["{}_norm/{}".format(layer, part)
             for layer in ("conv1", "conv2") for part in (
                 "beta", "gamma", "moving_mean", "moving_variance")]
    assert set(shapes) == {"global_step"} | {
        "network/" + name for name in layers + norms}
    assert sum(int(np.prod(shape)) for shape in shapes.values()) == (
        TRAINED + MOVING + 1)


def test_digits_counts_the_windows_in_the_global_step(short_run):
    _, folder = short_run
    checkpoint = tf.train.load_checkpoint(tf.train.latest_checkpoint(folder))
    assert checkpoint.get_tensor("global_step") == 60


def test_digits_moves_the_batch_norm_statistics(short_run):
    _, folder = short_run
    checkpoint = tf.train.load_checkpoint(tf.train.latest_checkpoint(folder))
    for layer in ("conv1", "conv2"):
        prefix = "network/{}_norm/moving_".format(layer)
        assert np.all(checkpoint.get_tensor(prefix + "mean") != 0.)
        assert np.all(checkpoint.get_tensor(prefix + "variance") != 1.)


def test_digits_says_how_many_bytes_the_checkpoint_holds(short_run):
    printed, folder = short_run
    # Weights of 4 bytes, and a global step of 8.
    model = 4 * (TRAINED + MOVING) + 8
    assert number_after("it holds", printed) == model
    data = tf.train.latest_checkpoint(folder) + ".data-00000-of-00001"
    assert os.path.getsize(data) == model


def test_digits_says_what_a_default_saver_would_have_put_in(short_run):
    printed, _ = short_run
    # An accumulator and two slots for each weight; the count, the mean loss
    # and Adam's two beta powers.
    more = 3 * 4 * TRAINED + 8 + 4 + 2 * 4
    model = 4 * (TRAINED + MOVING) + 8
    assert number_after("would have put in", printed) == model + more
    left_out = re.findall(r"^  (\S+) +([\d,]+) bytes  left out$", printed,
                          re.MULTILINE)
    assert sum(int(size.replace(",", "")) for _, size in left_out) == more
    names = [name for name, _ in left_out]
    assert "accumulation/network/conv1/kernel" in names
    assert "network/conv1/kernel/Adam" in names


def test_digits_windows_and_whole_batches_lead_to_the_same_weights(short_run):
    printed, _ = short_run
    assert "10 windows of 2 micro-batches against 10 whole batches" in printed
    assert number_after("difference between weights", printed) < 1e-6


def test_digits_prints_lines_of_at_most_80_columns(short_run):
    printed, folder = short_run
    assert [line for line in printed.splitlines()
            if len(line) > 80 and folder not in line] == []


def test_digits_help_names_each_option():
    run = run_digits("--help")
    assert run.returncode == 0
    for option in ("--k", "--steps", "--logdir"):
        assert option in run.stdout


@pytest.mark.parametrize("option", ["--k", "--steps"])
def test_digits_refuses_a_number_below_one(option):
    run = run_digits(option, "0")
    assert run.returncode == 2
    assert "must be 1 or more" in run.stderr


def test_the_data_is_given_with_its_attribution():
    with open(os.path.join(EXAMPLES, "data", "ATTRIBUTION.txt")) as text:
        attribution = text.read()
    assert "E. Alpaydin and C. Kaynak" in attribution
    assert "CC BY 4.0" in attribution
