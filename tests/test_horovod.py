"""Horovod: one reduction a window, and none that is left out unseen."""

import collections
import json
import os
import re
import subprocess
import sys
import warnings

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import models
import shares
import tf1accum
from conftest import EXAMPLES, in_pairs, run_here
from tf1accum import ports

HERE = os.path.dirname(os.path.abspath(__file__))
CURE = "transform=lambda pairs: [(hvd.allreduce(grad), variable)"


class _DistributedOptimizer(tf.train.Optimizer):
    """Does as Horovod's, with another worker whose gradients are all 0."""

    def __init__(self, optimizer, backward_passes_per_step=1):
        super().__init__(False, "DistributedGradientDescent")
        self._optimizer = optimizer
        self._agg_helper = (
            object() if backward_passes_per_step > 1 else None)

    def compute_gradients(self, *args, **kwargs):
        return [(grad / 2., variable) for grad, variable in
                self._optimizer.compute_gradients(*args, **kwargs)]

    def apply_gradients(self, *args, **kwargs):
        return self._optimizer.apply_gradients(*args, **kwargs)


_DistributedOptimizer.__module__ = "horovod.tensorflow"


class Wrapper(tf.train.Optimizer):
    """Hands on what it is asked to."""

    def __init__(self, optimizer):
        tf.train.Optimizer.__init__(self, False, "Wrapper")
        self.inner = [optimizer]

    def compute_gradients(self, *args, **kwargs):
        return self.inner[0].compute_gradients(*args, **kwargs)

    def apply_gradients(self, *args, **kwargs):
        return self.inner[0].apply_gradients(*args, **kwargs)


# The same class by other names.
_Adasum, _Mine = [
    type(name, (tf.train.Optimizer,), dict(
        Wrapper.__dict__, __module__=module))
    for name, module in (
        ("_DistributedAdasumOptimizer", "horovod.tensorflow"),
        ("_DistributedOptimizer", "mine"))]


def try_horovod():
    """Horovod, for TensorFlow, or None where it is not installed."""
    try:
        import horovod.tensorflow as hvd
    except ImportError:
        return None
    hvd.init()
    return hvd


hvd = try_horovod()


def stand_in(rate=1., **kwargs):
    return _DistributedOptimizer(
        tf.train.GradientDescentOptimizer(rate), **kwargs)


def real(**kwargs):
    return hvd.DistributedOptimizer(
        tf.train.GradientDescentOptimizer(1.), **kwargs)


MAKERS = [stand_in] + ([real] if hvd else [])


@pytest.fixture
def variable():
    return tf.get_variable("v", [3], initializer=tf.ones_initializer(),
                           use_resource=True)


@pytest.mark.parametrize("wrap", [lambda optimizer: optimizer, Wrapper])
@pytest.mark.parametrize("make", MAKERS)
def test_an_optimizer_of_which_nothing_would_be_reduced_is_refused(
        variable, make, wrap):
    pairs = [(tf.gradients(variable * variable, variable)[0], variable)]

    def refuses(who, call):
        models.refuses(ValueError, [
            who, "reduces in its compute_gradients", "is not called here",
            "_DistributedOptimizer", CURE], call)

    refuses("tf1accum.build_from_gradients", lambda:
            tf1accum.build_from_gradients(
                pairs, optimizer=wrap(make()), k=2))
    refuses("tf1accum.AccumulatingOptimizer", lambda:
            tf1accum.AccumulatingOptimizer(
                wrap(make()), 2).apply_gradients(pairs))
    # What another had computed, one more than it computed itself.
    opt = tf1accum.AccumulatingOptimizer(wrap(make()), 2)
    other = tf.get_variable("other", initializer=1., use_resource=True)
    both = opt.compute_gradients(tf.reduce_sum(variable), [variable]) + [
        (tf.gradients(other * other, other)[0], other)]
    refuses("tf1accum.AccumulatingOptimizer",
            lambda: opt.apply_gradients(both))


@pytest.mark.parametrize("make", MAKERS)
def test_one_that_accumulates_by_itself_is_refused_everywhere(variable, make):
    loss = tf.reduce_sum(variable)
    opt = make(backward_passes_per_step=2)
    for call in (lambda: tf1accum.build(loss, optimizer=opt, k=2),
                 lambda: tf1accum.build_host(loss, optimizer=opt),
                 lambda: tf1accum.AccumulatingOptimizer(opt, 2).minimize(loss),
                 lambda: ports.AccumulatingOptimizer(opt, [variable])):
        models.refuses(ValueError, [
            "tf1accum.", "must not accumulate by itself",
            "backward_passes_per_step", CURE], call)


def clipped(pairs):
    grads, variables = zip(*pairs)
    return list(zip(tf.clip_by_global_norm(grads, 100.)[0], variables))


@pytest.mark.parametrize("call", [
    lambda opt, loss: opt.minimize(loss),
    lambda opt, loss: opt.minimize(loss, colocate_gradients_with_ops=True),
    lambda opt, loss: opt.apply_gradients(opt.compute_gradients(loss)),
    lambda opt, loss: opt.apply_gradients(
        clipped(opt.compute_gradients(loss))),
])
@in_pairs
def test_reduced_with_each_micro_batch_it_is_right_and_said_to_be_slow(
        behaviour, use_resource, call):
    v = tf.get_variable("v", [3], initializer=tf.zeros_initializer(),
                        use_resource=use_resource)
    x = tf.placeholder(tf.float32, [])
    opt = tf1accum.AccumulatingOptimizer(stand_in(), 2)
    with pytest.warns(UserWarning) as warned:
        train_op = call(opt, tf.reduce_sum(x * v))
    said, = [str(one.message) for one in warned
             if "_DistributedOptimizer" in str(one.message)]
    assert "tf1accum.AccumulatingOptimizer: " in said
    assert "k times the traffic" in said and CURE in said
    with models.session() as session:
        for fed in (2., 6.):
            session.run(train_op, {x: fed})
        # The mean over the two micro-batches, and over the two workers.
        np.testing.assert_array_equal(session.run(v), [-2., -2., -2.])


@pytest.mark.parametrize("make", MAKERS)
def test_every_builder_that_computes_gradients_says_so(variable, make):
    loss = tf.reduce_sum(variable)
    for who, call in (
            ("build", lambda: tf1accum.build(loss, optimizer=make(), k=2)),
            ("build_host", lambda: tf1accum.build_host(
                loss, optimizer=make())),
            ("microbatch_gradients", lambda: tf1accum.microbatch_gradients(
                lambda x: tf.reduce_mean(x) * tf.reduce_sum(variable),
                tf.zeros([4]), 2, optimizer=make())),
            ("ports.AccumulatingOptimizer", lambda:
             ports.AccumulatingOptimizer(make(), [variable])),
            ("ports.AccumGradOptimizer", lambda:
             ports.AccumGradOptimizer(make(), 2).minimize(loss))):
        with pytest.warns(UserWarning) as warned:
            call()
        said, = [one for one in warned
                 if "_DistributedOptimizer" in str(one.message)]
        assert str(said.message).startswith("tf1accum.{}: ".format(who))
        assert said.filename == __file__


@pytest.mark.parametrize("wrap", [_Adasum, _Mine, lambda plain: plain])
def test_others_are_taken_without_a_word(variable, wrap):
    """Those that reduce in apply_gradients, or go by that name elsewhere."""
    opt = wrap(tf.train.GradientDescentOptimizer(1.))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        tf1accum.build_from_gradients(
            [(tf.ones([3]), variable)], optimizer=opt, k=2)
        tf1accum.build(tf.reduce_sum(variable), optimizer=opt, k=2)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What two processes under horovodrun leave in a folder."""
    if hvd is None:
        pytest.skip(
            "Horovod is not installed. It builds against TensorFlow 2.15 in "
            "some 6 minutes: pip install cmake psutil cloudpickle pyyaml, then "
            "HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITHOUT_PYTORCH=1 "
            "HOROVOD_WITHOUT_MXNET=1 HOROVOD_WITHOUT_MPI=1 "
            "HOROVOD_WITH_GLOO=1 HOROVOD_CPU_OPERATIONS=GLOO pip install "
            "--no-build-isolation --no-deps horovod==0.28.1")
    folder = tmp_path_factory.mktemp("ranks")
    run_ranks(folder, os.path.join(HERE, "horovod_worker.py"), str(folder))
    return folder


def run_ranks(folder, *command):
    """What two ranks that run the Python program `command` print."""
    environment = dict(
        os.environ, HOROVOD_TIMELINE=str(folder / "timeline"),
        PYTHONPATH=os.path.dirname(os.path.dirname(tf1accum.__file__)))
    # A group of its own: who ends it ends all its processes.
    run = subprocess.Popen(
        [sys.executable, "-m", "horovod.runner.launch", "-np", "2", "-H",
         "localhost:2", "--gloo", "--network-interfaces", "lo",
         sys.executable] + list(command),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment,
        universal_newlines=True, start_new_session=True)
    try:
        printed, _ = run.communicate(timeout=120)
    finally:
        if run.poll() is None:
            os.killpg(run.pid, 9)
            run.wait()
    assert run.returncode == 0, printed
    return printed


@pytest.mark.parametrize("rule", sorted(shares.RULES))
def test_k_runs_on_each_rank_equal_one_step_on_the_whole_batch(ranks, rule):
    """Of a lookup too, whose rows stay rows; the last window is flushed."""
    k, windows = shares.K, shares.WINDOWS
    expected = shares.on_whole_batches(
        rule, rows=True, ends=[*range(k, k * windows + 1, k), k * windows + 1])
    for rank in range(2):
        saved = np.load(str(ranks / "{}-{}.npz".format(rule, rank)))
        assert saved["step"] == windows + 1
        shares.assert_close(
            [saved["arr_%d" % i] for i in range(2 * (windows + 1))],
            [value for values in expected for value in values])


@pytest.mark.parametrize("rule", sorted(shares.RULES))
def test_horovod_reduces_once_a_window(ranks, rule):
    """For each gradient; the rows of a lookup and their places are two."""
    assert count_reductions(ranks / "timeline", rule) == {
        # By the train op.
        (rule + "/step", "ALLREDUCE"): shares.WINDOWS,
        (rule + "/step", "ALLGATHER"): 2 * shares.WINDOWS,
        # By flush.
        (rule, "ALLREDUCE"): 1, (rule, "ALLGATHER"): 2}


def count_reductions(path, box):
    """How often what was reduced where in a box, by Horovod's timeline."""
    events = json.loads(path.read_text())
    tensors = {event["pid"]: event["args"].get("name", "")
               for event in events if event.get("name") == "process_name"}
    return collections.Counter(
        (tensors[event["pid"]].split("/transform/")[0], event["name"])
        for event in events if event.get("ph") == "B"
        and event["name"] in ("ALLREDUCE", "ALLGATHER")
        and tensors[event["pid"]].startswith(box + "/"))


def test_the_example_says_how_to_get_horovod_or_is_right(tmp_path):
    name = os.path.join("distributed", "horovod_digits.py")
    assert "--steps" in run_here(name, "--help", status=0)
    if hvd is None:
        run_here(name, status=(
            "needs Horovod: HOROVOD_WITH_TENSORFLOW=1 pip install "
            "--no-build-isolation horovod (and TensorFlow 1.15 or 2.15)"))
        return
    example = os.path.join(EXAMPLES, name)
    printed = run_ranks(tmp_path, example, "--k", "3", "--steps", "5")
    differences = re.findall(r"weights(?: of process 0:)? ([0-9.e+-]+)$",
                             printed, re.MULTILINE)
    assert len(differences) == 3
    assert all(float(difference) < 1e-6 for difference in differences)
    # Four variables, five windows.
    assert count_reductions(tmp_path / "timeline", "accumulation") == {
        ("accumulation/step", "ALLREDUCE"): 4 * 5}
