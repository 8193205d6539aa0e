"""What every test runs under: one behaviour of TensorFlow, one fresh graph."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import pytest
import tensorflow.compat.v1 as tf

tf.disable_eager_execution()
tf.logging.set_verbosity(tf.logging.ERROR)


def pytest_addoption(parser):
    parser.addoption("--sequences", type=int, default=300, metavar="N",
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
