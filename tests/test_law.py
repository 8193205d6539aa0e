"""The law: k micro-batches and one apply equal one step on the whole batch."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import models
import tf1accum

WINDOWS = 20

# TensorFlow's proximal optimizers take no float64 variables.
CELLS = [(optimizer, dtype) for optimizer in sorted(models.OPTIMIZERS)
         for dtype in (tf.float32, tf.float64)
         if dtype == tf.float32 or not optimizer.startswith("proximal")]


def run_both(optimizer, k, use_resource, dtype):
    """Trains twins, one by windows, one by whole batches.

    Returns:
      (values of the window's twin, values of the whole batch's twin), slots
      and beta powers included, each a list of arrays.
    """
    windows = models.Regression("windows", use_resource, dtype)
    wholes = models.Regression("wholes", use_resource, dtype)
    whole_optimizer = models.OPTIMIZERS[optimizer]()
    step = whole_optimizer.minimize(wholes.loss, var_list=wholes.variables)
    window_optimizer = models.OPTIMIZERS[optimizer]()
    ops = tf1accum.build(
        windows.loss, windows.variables, window_optimizer, k)
    batches = windows.batches(WINDOWS * k)
    with models.session() as session:
        for start in range(0, len(batches), k):
            window = batches[start:start + k]
            for batch in window:
                session.run(ops.accumulate, windows.feed(batch))
            session.run(ops.apply)
            session.run(ops.reset)
            session.run(step, wholes.feed(models.whole(window)))
        return [session.run(model.variables + opt.variables())
                for model, opt in ((windows, window_optimizer),
                                   (wholes, whole_optimizer))]


@pytest.mark.parametrize("k", [1, 2, 5])
@pytest.mark.parametrize("optimizer, dtype", CELLS)
def test_k_micro_batches_and_an_apply_equal_one_step_on_the_whole_batch(
        behaviour, use_resource, optimizer, k, dtype):
    by_windows, by_wholes = run_both(optimizer, k, use_resource, dtype)
    rounding = 2e-5 if dtype == tf.float32 else 1e-12
    for one, other in zip(by_windows, by_wholes):
        if k == 1:
            np.testing.assert_array_equal(one, other)
        np.testing.assert_allclose(one, other, rtol=rounding, atol=rounding)


@pytest.mark.parametrize("k", [1, 2, 5])
def test_sgd_by_windows_gives_the_numbers_of_numpy(
        behaviour, use_resource, k):
    model = models.Regression(use_resource=use_resource, dtype=tf.float64)
    ops = tf1accum.build(
        model.loss, optimizer=tf.train.GradientDescentOptimizer(0.1), k=k)
    values = list(model.start)
    batches = model.batches(3 * k)
    with models.session() as session:
        for start in range(0, len(batches), k):
            window = batches[start:start + k]
            for batch in window:
                session.run(ops.accumulate, model.feed(batch))
            session.run(ops.apply_and_reset)
            mean = [np.mean(grads, axis=0) for grads in zip(
                *[model.gradients(values, batch) for batch in window])]
            # The optimizer holds its rate as a float32.
            values = [v - np.float64(np.float32(0.1)) * g for v, g in zip(values, mean)]
            for got, expected in zip(session.run(model.variables), values):
                np.testing.assert_allclose(got, expected, rtol=1e-12)


def test_adagrad_da_which_counts_its_own_steps_obeys_the_law(use_resource):
    results = []
    for scope in ("windows", "wholes"):
        with tf.Graph().as_default():
            model = models.Regression(scope, use_resource)
            step = tf.train.get_or_create_global_step()
            optimizer = tf.train.AdagradDAOptimizer(0.1, step)
            whole = optimizer.minimize(model.loss, global_step=step) \
                if scope == "wholes" else None
            ops = whole or tf1accum.build(
                model.loss, optimizer=optimizer, k=2, global_step=step)
            batches = model.batches(20)
            with models.session() as session:
                for pair in zip(batches[::2], batches[1::2]):
                    if whole is not None:
                        session.run(whole, model.feed(models.whole(pair)))
                        continue
                    for batch in pair:
                        session.run(ops.accumulate, model.feed(batch))
                    session.run(ops.apply_and_reset)
                results.append(session.run(model.variables + [step]))
    for one, other in zip(*results):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
