"""What every test runs under: one behaviour of TensorFlow, one fresh graph."""

import contextlib
import io
import os
import runpy
import subprocess
import sys
from unittest import mock

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import pytest
import tensorflow.compat.v1 as tf

import tf1accum

EXAMPLES = os.path.join(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "examples")

tf.disable_eager_execution()
tf.logging.set_verbosity(tf.logging.ERROR)


def pytest_addoption(parser):
    # As many as each run of all tests can afford. Who changes what a window
    # does runs more: `pytest tests/test_differential.py --sequences 1000`.
    parser.addoption("--sequences", type=int, default=100, metavar="N",
                     help="random sequences to run (test_differential.py)")
    parser.addoption("--seed", type=int, default=None, metavar="S",
                     help="run the random sequence S alone")


def set_behaviour(behaviour):
    """Turns on what `behaviour` stands for, in this process.

    "v1" is what `disable_v2_behavior()` leaves; "eager_off" is TensorFlow 2
    with `disable_eager_execution()` alone.
    """
    if behaviour == "v1":
        tf.disable_control_flow_v2()
        tf.disable_resource_variables()
        tf.disable_v2_tensorshape()
        tf.disable_tensor_equality()
    else:
        tf.enable_control_flow_v2()
        tf.enable_resource_variables()
        tf.enable_v2_tensorshape()
        tf.enable_tensor_equality()


@pytest.fixture(params=["v1", "eager_off"])
def behaviour(request):
    set_behaviour(request.param)
    yield request.param
    set_behaviour("v1")


@pytest.fixture(params=["ref", "resource"])
def use_resource(request):
    return request.param == "resource"


# For what is tested in many cases: each behaviour and each kind of variable, in
# the pairs that programs have, where the law has all pairs.
in_pairs = pytest.mark.parametrize(
    "behaviour, use_resource", [("v1", "ref"), ("eager_off", "resource")],
    indirect=True)


@pytest.fixture(autouse=True)
def graph():
    set_behaviour("v1")
    with tf.Graph().as_default() as graph:
        yield graph


@pytest.fixture
def export(capfd, caplog):
    """A function that writes the MetaGraph, of which nothing may be left out.

    What does not serialise, TensorFlow logs and leaves out.
    """

    def write(path):
        tf.logging.set_verbosity(tf.logging.INFO)
        try:
            tf.train.export_meta_graph(str(path))
        finally:
            tf.logging.set_verbosity(tf.logging.ERROR)
        said = capfd.readouterr().err + caplog.text
        assert "serializing" not in said and "WARN" not in said

    return write


def run_example(name, *arguments):
    """What an example prints, run as a program of its own."""
    package = os.path.dirname(os.path.dirname(tf1accum.__file__))
    run = subprocess.run(
        [sys.executable, os.path.join(EXAMPLES, name)] + list(arguments),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        universal_newlines=True, env=dict(os.environ, PYTHONPATH=package),
        timeout=300)
    assert run.returncode == 0, run.stderr
    return run.stdout


def run_here(name, *arguments, status=None):
    """What an example prints, run in this process: to start one takes seconds.

    Args:
      status: what it has to end with at once, or None when it has to run.
    """
    path, printed = os.path.join(EXAMPLES, name), io.StringIO()
    with mock.patch.object(sys, "argv", [path] + list(arguments)), \
            mock.patch.object(sys, "path", [EXAMPLES] + sys.path), \
            contextlib.redirect_stdout(printed), \
            contextlib.redirect_stderr(printed):
        try:
            if status is None:
                runpy.run_path(path, run_name="__main__")
            else:
                with pytest.raises(SystemExit) as stop:
                    runpy.run_path(path, run_name="__main__")
                assert stop.value.code == status
        finally:
            set_behaviour("v1")
    return printed.getvalue()
