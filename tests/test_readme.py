"""The README does what it says."""

import os
import pkgutil
import re
import subprocess
import sys

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import tf1accum

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

with open(os.path.join(ROOT, "README.md")) as readme:
    README = readme.read()

BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)
PROGRAMS = [
    (text, BLOCKS[index + 1:index + 2])
    for index, (language, text) in enumerate(BLOCKS) if language == "python"]


def section(title):
    return README.split("\n## {}\n".format(title))[1].split("\n## ")[0]


def test_the_readme_has_a_program():
    assert PROGRAMS


@pytest.mark.parametrize("program, following", PROGRAMS,
                         ids=range(len(PROGRAMS)))
def test_each_program_prints_the_block_that_follows_it(
        program, following, tmp_path):
    package = os.path.dirname(os.path.dirname(tf1accum.__file__))
    run = subprocess.run(
        [sys.executable, "-c", program], stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, universal_newlines=True, cwd=str(tmp_path),
        env=dict(os.environ, PYTHONPATH=package, TMPDIR=str(tmp_path)))
    assert run.returncode == 0, run.stderr
    assert [("text", run.stdout)] == following


def test_it_is_under_120_lines():
    assert len(README.splitlines()) < 120


def test_its_first_paragraph_says_mean_not_sum():
    assert "mean, not sum" in README.split("\n\n")[1]


def test_its_layout_lists_each_module_once():
    words = re.findall(r"\w+", "".join(
        line[4:60] for line in section("Layout").splitlines(True)
        if line.startswith("    ")))
    modules = {module.name for module in pkgutil.iter_modules(
        tf1accum.__path__)}
    assert sorted(word for word in words if word.islower()) == sorted(modules)


def test_its_calls_name_what_the_package_has():
    for name in re.findall(r"tf1accum\.(\w+)\(", README):
        assert name in tf1accum.__all__


# The ways of working that the README's table lists, each a function of the
# loss, the variables and k that returns one of the session and the feeds of a
# window. The recipes are kept as their authors wrote them.


def session_script(loss, variables, k):
    del k
    accum_vars = [tf.Variable(tf.zeros(variable.shape), trainable=False)
                  for variable in variables]
    zero_ops = [tv.assign(tf.zeros_like(tv)) for tv in accum_vars]
    optimizer = tf.train.AdamOptimizer(.1)
    grads = optimizer.compute_gradients(loss, variables)
    accum_ops = [accum_vars[i].assign_add(gv[0])
                 for i, gv in enumerate(grads)]
    train_step = optimizer.apply_gradients(
        [(accum_vars[i], gv[1]) for i, gv in enumerate(grads)])

    def run_window(sess, feeds):
        for feed in feeds:
            sess.run(accum_ops, feed)
        sess.run(train_step)
        sess.run(zero_ops)

    return run_window


def numpy_script(loss, variables, k):
    optimizer = tf.train.AdamOptimizer(.1)
    gradients = optimizer.compute_gradients(loss, variables)
    gradient_tensors = [gradient for gradient, _ in gradients]
    train_op = optimizer.apply_gradients(gradients)

    def run_window(sess, feeds):
        values = [sess.run(gradient_tensors, feed) for feed in feeds]
        averages = [sum(grads) / k for grads in zip(*values)]
        sess.run(train_op, dict(zip(gradient_tensors, averages)))

    return run_window


def built_sum(loss, variables, k):
    ops = tf1accum.build(loss, variables, optimizer=tf.train.AdamOptimizer(.1),
                         k=k, reduction="sum")
    return runs_three_ops(ops)


def built_mean(loss, variables, k):
    ops = tf1accum.build(
        loss, variables, optimizer=tf.train.AdamOptimizer(.1), k=k)
    return runs_three_ops(ops)


def built_from_fed_gradients(loss, variables, k):
    grads = tf.gradients(loss, variables)
    fed = [tf.placeholder(grad.dtype, grad.shape) for grad in grads]
    ops = tf1accum.build_from_gradients(
        zip(fed, variables), optimizer=tf.train.AdamOptimizer(.1), k=k)

    def run_window(sess, feeds):
        for feed in feeds:
            sess.run(ops.accumulate, dict(zip(fed, sess.run(grads, feed))))
        sess.run(ops.apply_and_reset)

    return run_window


def runs_three_ops(ops):

    def run_window(sess, feeds):
        for feed in feeds:
            sess.run(ops.accumulate, feed)
        sess.run(ops.apply)
        sess.run(ops.reset)

    return run_window


def weights_after_five_windows_of_three(way_of_working):
    random = np.random.RandomState(0)
    with tf.Graph().as_default(), tf.Session() as sess:
        x = tf.placeholder(tf.float32, [None, 2])
        kernel = tf.Variable([[.3, -.2], [.1, .4]])
        bias = tf.Variable([0., 0.])
        loss = tf.reduce_mean(tf.square(tf.matmul(x, kernel) + bias - 1.))
        run_window = way_of_working(loss, [kernel, bias], 3)
        sess.run(tf.global_variables_initializer())
        for _ in range(5):
            run_window(sess, [{x: random.randn(4, 2)} for _ in range(3)])
        return np.concatenate(sess.run([kernel, [bias]]))


@pytest.mark.parametrize("had, written", [
    (session_script, built_sum),
    (numpy_script, built_mean),
    (numpy_script, built_from_fed_gradients),
])
def test_what_the_table_writes_trains_like_what_one_had(had, written):
    np.testing.assert_allclose(
        weights_after_five_windows_of_three(written),
        weights_after_five_windows_of_three(had), rtol=1e-4)
