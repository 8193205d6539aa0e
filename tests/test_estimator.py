"""The train op in an Estimator, where max_steps counts windows."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import events
import models
import tf1accum

if not hasattr(tf, "estimator"):
    pytest.skip("TensorFlow {} has no tf.estimator; it was removed in "
                "2.16.".format(tf.__version__), allow_module_level=True)

K = 4
SIZE = 4  # of a micro-batch


def examples(number, seed=1):
    """Features and targets of `number` examples."""
    random = np.random.RandomState(seed)
    return (random.randn(number, 3).astype(np.float32),
            random.randn(number, 2).astype(np.float32))


def input_fn(data, size=SIZE, skip=0, repeat=False):
    """A function that gives out batches of `data`, less the first `skip`."""

    def build():
        batches = tf.data.Dataset.from_tensor_slices(data).batch(size)
        batches = batches.skip(skip)
        return batches.repeat() if repeat else batches

    return build


def model_fn(features, labels, mode, params):
    """Least squares by Adam; every k-th run applies, unless k is None."""
    w = tf.get_variable("w", [3, 2], initializer=tf.zeros_initializer())
    predictions = tf.matmul(features, w)
    if mode == tf.estimator.ModeKeys.PREDICT:
        return tf.estimator.EstimatorSpec(mode, predictions)
    loss = tf.reduce_mean(tf.square(predictions - labels))
    optimizer = tf.train.AdamOptimizer(0.1, epsilon=1.)
    if params["k"]:
        optimizer = tf1accum.AccumulatingOptimizer(optimizer, params["k"])
    return tf.estimator.EstimatorSpec(
        mode, predictions, loss, train_op=optimizer.minimize(
            loss, tf.train.get_global_step())
        if mode == tf.estimator.ModeKeys.TRAIN else None)


def make(folder, k=K):
    return tf.estimator.Estimator(
        model_fn, str(folder), tf.estimator.RunConfig(
            save_checkpoints_steps=100, save_summary_steps=None,
            log_step_count_steps=None), {"k": k})


def saved(estimator):
    """All arrays in the newest checkpoint, by name."""
    return {name: estimator.get_variable_value(name)
            for name in estimator.get_variable_names()}


class Runs(tf.train.SessionRunHook):
    """Counts the runs of a session."""

    number = 0

    def after_run(self, run_context, run_values):
        self.number += 1


def test_max_steps_counts_windows_which_equal_whole_batches(
        behaviour, tmp_path):
    """Rows A2, C2 and C3."""
    data = examples(5 * K * SIZE)
    windows, wholes = make(tmp_path / "k"), make(tmp_path / "whole", k=None)
    runs = Runs()
    windows.train(input_fn(data), hooks=[runs], max_steps=3)
    assert runs.number == 3 * K
    windows.train(input_fn(data), hooks=[runs], max_steps=3)
    assert runs.number == 3 * K
    wholes.train(input_fn(data, K * SIZE), max_steps=3)
    got, expected = saved(windows), saved(wholes)
    assert got["global_step"] == 3
    for name in expected:
        np.testing.assert_allclose(
            got[name], expected[name], rtol=1e-4, atol=1e-5, err_msg=name)
    assert {name for name in got if name not in expected} == {
        "accumulation/count", "accumulation/average_loss", "accumulation/w"}


def test_it_evaluates_and_predicts_from_the_checkpoint(tmp_path):
    data = examples(2 * K * SIZE)
    estimator = make(tmp_path)
    estimator.train(input_fn(data), steps=2)
    error = data[0].dot(estimator.get_variable_value("w")) - data[1]
    result = estimator.evaluate(input_fn(data))
    assert result["global_step"] == 2
    np.testing.assert_allclose(
        result["loss"], np.mean(np.square(error)), rtol=1e-4)
    np.testing.assert_allclose(
        list(estimator.predict(input_fn(data))), error + data[1], rtol=1e-4,
        atol=1e-5)


def test_training_resumes_in_mid_window_bit_equal(tmp_path):
    """An input that ends in a window leaves the window in the checkpoint."""
    x, y = examples(5 * K * SIZE)
    whole, parts = make(tmp_path / "whole"), make(tmp_path / "parts")
    whole.train(input_fn((x, y)))
    parts.train(input_fn((x[:10 * SIZE], y[:10 * SIZE])))
    got = saved(parts)
    assert [got["global_step"], got["accumulation/count"]] == [2, 2]
    parts.train(input_fn((x, y), skip=10), steps=3)
    assert saved(parts)["global_step"] == 5
    models.assert_same_bits(saved(whole), saved(parts))


def test_it_trains_and_evaluates(tmp_path):
    data = examples(3 * K * SIZE)
    estimator = make(tmp_path)
    result, _ = tf.estimator.train_and_evaluate(
        estimator, tf.estimator.TrainSpec(
            input_fn(data, repeat=True), max_steps=6),
        tf.estimator.EvalSpec(input_fn(data), steps=None, throttle_secs=0,
                              start_delay_secs=0))
    assert result["global_step"] == 6
    assert result["loss"] < np.mean(np.square(data[1]))


@pytest.mark.parametrize(
    "number, expected", [(10, (10, 2, 2)), (20, (12, 3, 0))])
def test_the_hook_drives_an_estimator_too(number, expected, tmp_path):
    """Fetched by the Estimator and by the hook, the op runs once.

    Hooks for the chief come before the one that stops, other hooks after it.
    """

    def hooked_fn(features, labels, mode):
        w = tf.get_variable("w", [3, 2], initializer=tf.zeros_initializer())
        loss = tf.reduce_mean(tf.square(tf.matmul(features, w) - labels))
        ops = tf1accum.build(
            loss, optimizer=tf.train.GradientDescentOptimizer(0.1), k=K,
            global_step=tf.train.get_global_step())
        return tf.estimator.EstimatorSpec(
            mode, loss=loss, train_op=ops.accumulate,
            training_chief_hooks=[tf1accum.AccumulationHook(ops)])

    estimator = tf.estimator.Estimator(hooked_fn, str(tmp_path))
    runs = Runs()
    estimator.train(input_fn(examples(number * SIZE)), hooks=[runs],
                    max_steps=3)
    got = saved(estimator)
    assert (runs.number, got["global_step"],
            got["accumulation/count"]) == expected


def test_an_estimator_writes_the_windows_of_a_train_op_and_of_a_hook(
        tmp_path):
    with tf.Graph().as_default():
        model = models.Regression()
        batches = model.batches(4 * K)

    def input_fn():
        return tf.data.Dataset.from_tensor_slices(tuple(
            np.array(part, np.float32) for part in zip(*batches)))

    def model_fn(features, labels, mode, params):
        with tf.variable_scope("model", use_resource=True):
            w, b = [tf.get_variable(name, initializer=tf.constant(start))
                    for name, start in zip("wb", model.start)]
        loss = tf.reduce_mean(tf.square(tf.matmul(features, w) + b - labels))
        step = tf.train.get_global_step()
        sgd = tf.train.GradientDescentOptimizer(0.1)
        if params["hook"]:
            ops = tf1accum.build(loss, optimizer=sgd, k=K, global_step=step)
            tf1accum.add_summaries(ops)
            return tf.estimator.EstimatorSpec(
                mode, loss=loss, train_op=ops.accumulate,
                training_chief_hooks=[tf1accum.AccumulationHook(ops)])
        return tf.estimator.EstimatorSpec(
            mode, loss=loss, train_op=tf1accum.AccumulatingOptimizer(
                sgd, K, summarize=tf1accum.add_summaries).minimize(
                    loss, step))

    for hook in (True, False):
        folder = str(tmp_path / str(hook))
        tf.estimator.Estimator(
            model_fn, folder, tf.estimator.RunConfig(
                save_summary_steps=3, log_step_count_steps=None),
            {"hook": hook}).train(input_fn)
        got = [(step, {tag: shown[tag] for tag in events.TAGS})
               for step, shown in events.written(folder)
               if events.TAGS[0] in shown]
        expected = events.numpy_windows(model, batches, K)
        assert [step for step, _ in got] == [1, 2, 3]
        for (_, shown), (loss, gradient_norm) in zip(got, expected):
            events.assert_summarises(shown, loss, gradient_norm, K)
