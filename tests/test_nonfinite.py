"""Micro-batches that are not finite: propagated, skipped, or refused."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import models
import tf1accum
from conftest import in_pairs

BAD = [(1,), (2,), (3,), (1, 2, 3)]


@pytest.fixture
def model(use_resource):
    return models.Regression(use_resource=use_resource)


def build(model, **kwargs):
    return tf1accum.build(
        model.loss, model.variables,
        optimizer=tf.train.AdamOptimizer(0.1, epsilon=1.), k=3, **kwargs)


def spoilt(batch, value):
    x = batch[0].copy()
    x[0, 0] = value
    return x, batch[1]


def step_of_adam(start, grad):
    """The first step: m / (1 - b1) = g, v / (1 - b2) = g^2."""
    rate = 0.1 * np.sqrt(1. - 0.999) / (1. - 0.9)
    return start - rate * 0.1 * grad / (
        np.sqrt(0.001) * np.abs(grad) + 1.)


def assert_stepped(session, model, batches):
    for got, start, grads in zip(
            session.run(model.variables), model.start,
            zip(*[model.gradients(model.start, b) for b in batches])):
        np.testing.assert_allclose(
            got, step_of_adam(start, np.mean(grads, axis=0)), rtol=1e-4,
            atol=1e-6)


@in_pairs
@pytest.mark.parametrize("bad, value", zip(BAD, 2 * [np.nan, np.inf]))
def test_skipped_micro_batches_have_never_been(behaviour, model, bad, value):
    """Row E14."""
    step = tf.train.get_or_create_global_step()
    ops = build(model, nonfinite="skip", global_step=step)
    batches = model.batches(3)
    good = [b for i, b in enumerate(batches, 1) if i not in bad]
    with models.session() as session:
        before = models.outside_values(session, ops)
        for i, batch in enumerate(batches, 1):
            session.run(ops.accumulate, model.feed(
                spoilt(batch, value) if i in bad else batch))
        assert session.run([ops.count, ops.skipped]) == [
            len(good), len(bad)]
        np.testing.assert_allclose(
            session.run(ops.average_loss), np.mean(
                [model.numpy_loss(model.start, b) for b in good] or [0.]),
            rtol=1e-5)
        session.run(ops.apply_and_reset)
        if good:
            assert_stepped(session, model, good)
            assert session.run(step) == 1
        else:
            models.assert_same_bits(
                before, models.outside_values(session, ops))
        # What has been skipped is counted on from window to window.
        assert session.run([ops.count, ops.skipped]) == [0, len(bad)]


@pytest.mark.parametrize("bad", BAD)
@in_pairs
def test_raising_names_what_is_bad_and_leaves_the_window_alone(
        behaviour, model, bad):
    ops = build(model, nonfinite="raise")
    batches = model.batches(3)
    with models.session() as session:
        for i, batch in enumerate(batches, 1):
            if i in bad:
                before = session.run(
                    [ops.accumulators, ops.count, ops.average_loss])
                with pytest.raises(tf.errors.InvalidArgumentError) as error:
                    session.run(
                        ops.accumulate, model.feed(spoilt(batch, np.nan)))
                for word in ("tf1accum: the micro-batch was not added to the "
                             "window accumulation", "model/w:0", "model/b:0",
                             "the loss " + model.loss.name):
                    assert word in error.value.message
                after = session.run(
                    [ops.accumulators, ops.count, ops.average_loss])
                for one, other in zip(before[0] + before[1:],
                                      after[0] + after[1:]):
                    np.testing.assert_array_equal(one, other)
            session.run(ops.accumulate, model.feed(batch))
        session.run(ops.apply)
        assert_stepped(session, model, batches)


def test_raising_names_only_what_is_bad(behaviour):
    a = tf.get_variable("a", [2], initializer=tf.zeros_initializer())
    b = tf.get_variable("b", [2], initializer=tf.zeros_initializer())
    x = tf.placeholder(tf.float32, [2])
    ops = tf1accum.build_from_gradients(
        [(tf.ones([2]), a), (x, b)], k=1, nonfinite="raise",
        optimizer=tf.train.GradientDescentOptimizer(1.))
    with models.session() as session:
        with pytest.raises(tf.errors.InvalidArgumentError) as error:
            session.run(ops.accumulate, {x: [1., np.inf]})
        message = error.value.message
        assert "[b:0]" in message.replace("'", "").replace('"', ""), message
        assert "a:0" not in message.split("finite:")[1].split("]")[1]


def test_by_default_what_is_bad_goes_on(model):
    ops = build(model)
    assert ops.skipped is None
    batches = model.batches(3)
    with models.session() as session:
        for batch in [spoilt(batches[0], np.nan)] + batches[1:]:
            session.run(ops.accumulate, model.feed(batch))
        assert session.run(ops.count) == 3
        session.run(ops.apply)
        assert np.isnan(session.run(model.b)).all()


@pytest.mark.parametrize("policy", ["skip", "raise"])
def test_rows_and_weights_are_looked_at_too(behaviour, policy):
    table = tf.get_variable("table", [4, 1], use_resource=True,
                            initializer=tf.zeros_initializer())
    scale = tf.placeholder(tf.float32, [])
    weight = tf.placeholder(tf.float32, [])
    loss = scale * tf.reduce_sum(tf.gather(table, [2]))
    ops = tf1accum.build(
        loss, [table], tf.train.GradientDescentOptimizer(1.), k=2,
        weight=weight, nonfinite=policy)
    with models.session() as session:
        for feed in ({scale: np.inf, weight: 1.}, {scale: 1., weight: np.nan}):
            if policy == "skip":
                session.run(ops.accumulate, feed)
            else:
                with pytest.raises(tf.errors.InvalidArgumentError):
                    session.run(ops.accumulate, feed)
        assert session.run([ops.count, ops.weight]) == [0, 0.]
        session.run(ops.accumulate, {scale: 3., weight: 2.})
        session.run(ops.apply)
        np.testing.assert_array_equal(
            session.run(table), [[0.], [0.], [-3.], [0.]])


def test_the_policy_must_be_one_of_three():
    with pytest.raises(ValueError) as error:
        build(models.Regression(), nonfinite="ignore")
    assert ('nonfinite must be "propagate" or "skip" or "raise"; got '
            "'ignore'") in str(error.value)


@pytest.mark.parametrize("policy", ["skip", "raise"])
@pytest.mark.parametrize("k", [1, 3])
def test_the_loss_of_a_bad_micro_batch_is_out_whatever_it_is_scaled_by(
        behaviour, policy, k):
    """Unscaled, it is handed on as it came; the gate has to hold it too."""
    v = tf.get_variable("v", initializer=1.)
    x = tf.placeholder(tf.float32, [])
    ops = tf1accum.build(v * x, [v], tf.train.GradientDescentOptimizer(1.),
                         k=k, nonfinite=policy)
    with models.session() as session:
        session.run(ops.accumulate, {x: 2.})
        for _ in range(20):
            try:
                session.run(ops.accumulate, {x: np.inf})
            except tf.errors.InvalidArgumentError:
                assert policy == "raise"
        assert session.run([ops.average_loss, ops.count]) == [2., 1]
