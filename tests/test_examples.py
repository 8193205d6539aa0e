"""The examples run, and what they print is so."""

import os
import re

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from conftest import EXAMPLES, run_example, run_here

# Variables of the network that are trained: two layers of 3x3 kernels with a
# beta and a gamma for each channel, and one that is fully connected.
TRAINED = (9 * 16 + 2 * 16) + (9 * 16 * 32 + 2 * 32) + (4 * 4 * 32 * 10 + 10)
MOVING = 2 * 16 + 2 * 32


@pytest.fixture(scope="module")
def default_run(tmp_path_factory):
    """What a run of the defaults prints, and the folder it is given."""
    folder = tmp_path_factory.mktemp("digits") / "made" / "by the example"
    return run_example("digits.py", "--logdir", str(folder)), str(folder)


def number_after(text, printed):
    return float(re.search(re.escape(text) + r"\s*([\d.,e+-]+)",
                           printed).group(1).replace(",", ""))


def test_digits_shows_the_loss_as_it_goes_and_the_loss_falls(default_run):
    printed, _ = default_run
    shown = re.findall(r"^window +(\d+) of 200: mean loss (.*)$", printed,
                       re.MULTILINE)
    assert [int(window) for window, _ in shown] == list(range(20, 201, 20))
    assert float(shown[-1][1]) < float(shown[0][1]) / 2


def test_digits_by_default_reads_at_least_97_of_100_digits(default_run):
    printed, _ = default_run
    assert "a window is 4 micro-batches" in printed
    assert number_after("test accuracy:", printed) >= .97


def test_digits_leaves_a_checkpoint_of_the_model_alone(default_run):
    printed, folder = default_run
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


def test_digits_counts_the_windows_in_the_global_step(default_run):
    _, folder = default_run
    checkpoint = tf.train.load_checkpoint(tf.train.latest_checkpoint(folder))
    assert checkpoint.get_tensor("global_step") == 200


def test_digits_moves_the_batch_norm_statistics(default_run):
    _, folder = default_run
    checkpoint = tf.train.load_checkpoint(tf.train.latest_checkpoint(folder))
    for layer in ("conv1", "conv2"):
        prefix = "network/{}_norm/moving_".format(layer)
        assert np.all(checkpoint.get_tensor(prefix + "mean") != 0.)
        assert np.all(checkpoint.get_tensor(prefix + "variance") != 1.)


def test_digits_says_how_many_bytes_the_checkpoint_holds(default_run):
    printed, folder = default_run
    # Weights of 4 bytes, and a global step of 8.
    model = 4 * (TRAINED + MOVING) + 8
    assert number_after("it holds", printed) == model
    data = tf.train.latest_checkpoint(folder) + ".data-00000-of-00001"
    assert os.path.getsize(data) == model


def test_digits_says_what_a_default_saver_would_have_put_in(default_run):
    printed, _ = default_run
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


def test_digits_windows_and_whole_batches_lead_to_the_same_weights(
        default_run):
    printed, _ = default_run
    assert "10 windows of 4 micro-batches against 10 whole batches" in printed
    assert number_after("difference between weights", printed) < 1e-6


def test_digits_prints_lines_of_at_most_80_columns(default_run):
    printed, folder = default_run
    assert [line for line in printed.splitlines()
            if len(line) > 80 and folder not in line] == []


def test_digits_takes_its_options(tmp_path):
    printed = run_here("digits.py", "--k", "2", "--steps", "3", "--logdir",
                       str(tmp_path))
    assert "a window is 2 micro-batches" in printed
    shown = re.findall(r"^window +(\d+) of 3: mean loss (.*)$", printed,
                       re.MULTILINE)
    assert [int(window) for window, _ in shown] == [1, 2, 3]
    # Ten classes, none of them known: log 10 = 2.3.
    assert float(shown[0][1]) > 1.
    assert tf.train.load_checkpoint(str(tmp_path)).get_tensor(
        "global_step") == 3
    assert "10 windows of 2 micro-batches against 10 whole batches" in printed
    assert number_after("difference between weights", printed) < 1e-6


def test_digits_help_names_each_option():
    printed = run_here("digits.py", "--help", status=0)
    for option in ("--k", "--steps", "--logdir"):
        assert option in printed


@pytest.mark.parametrize("option", ["--k", "--steps"])
def test_digits_refuses_a_number_below_one(option):
    assert "must be 1 or more" in run_here("digits.py", option, "0", status=2)


def test_the_data_is_given_with_its_attribution():
    with open(os.path.join(
            EXAMPLES, "data", "ATTRIBUTION.txt")) as text:
        attribution = text.read()
    assert "E. Alpaydin and C. Kaynak" in attribution
    assert "CC BY 4.0" in attribution
