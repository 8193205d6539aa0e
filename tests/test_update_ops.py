"""Which update ops go with a loss, and which are refused."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import models
import tf1accum

DECAY = 0.5


def batch_norm(x, scope, fused=False):
    """Batch normalisation as layers write it, statistics in UPDATE_OPS."""
    size = int(x.shape[-1])
    with tf.variable_scope(scope):
        gamma = tf.get_variable("gamma", [size], initializer=tf.ones_initializer())
        beta = tf.get_variable("beta", [size], initializer=tf.zeros_initializer())
        moving = tf.get_variable("moving_mean", [size], trainable=False,
                                 initializer=tf.zeros_initializer())
        if fused:
            y, mean, _ = tf.nn.fused_batch_norm(
                x[:, None, None, :], gamma, beta)
            y = y[:, 0, 0, :]
        else:
            mean, variance = tf.nn.moments(x, [0])
            y = tf.nn.batch_normalization(
                x, mean, variance, beta, gamma, 1e-3)
        tf.add_to_collection(
            tf.GraphKeys.UPDATE_OPS,
            moving.assign_sub((moving - mean) * (1. - DECAY)).op)
    return y, moving


def dense(x, scope, size=2):
    with tf.variable_scope(scope):
        return tf.matmul(x, tf.get_variable("w", [int(x.shape[-1]), size]))


def build(loss, scope, **kwargs):
    return tf1accum.build(
        loss, tf.trainable_variables(scope),
        optimizer=tf.train.GradientDescentOptimizer(0.1), k=2, **kwargs)


def names(ops):
    return sorted(op.name for op in ops.update_ops)


@pytest.fixture
def x(behaviour):
    return tf.placeholder(tf.float32, [None, 3], "x")


def test_statistics_move_with_each_accumulate_and_not_with_apply(x):
    """Rows F3 and F4: after k micro-batches, the moving mean moved k times."""
    y, moving = batch_norm(x, "bn")
    ops = build(tf.reduce_mean(tf.square(dense(y, "out") - 1.)), None)
    random = np.random.RandomState(0)
    expected = np.zeros(3)
    with models.session() as session:
        for _ in range(2):
            batch = random.randn(5, 3)
            session.run(ops.accumulate, {x: batch})
            expected += (batch.mean(0) - expected) * (1. - DECAY)
            np.testing.assert_allclose(
                session.run(moving), expected, rtol=1e-5)
        session.run(ops.apply_and_reset)
        np.testing.assert_allclose(session.run(moving), expected, rtol=1e-5)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("first", [False, True])
def test_two_losses_on_one_input_run_each_their_own(x, fused, first):
    """Row F5, also where normalisation is the first thing a model does."""
    losses = {}
    for scope in ("one", "two"):
        with tf.variable_scope(scope):
            y = x if first else dense(x, "in")
            y, _ = batch_norm(y, "bn", fused)
            losses[scope] = tf.reduce_mean(tf.square(dense(y, "out") - 1.))
    for scope, loss in losses.items():
        got = names(build(loss, scope))
        assert len(got) == 1 and got[0].startswith(scope + "/"), got


@pytest.mark.parametrize("fused", [False, True])
def test_two_heads_on_one_trunk_run_the_trunks_and_their_own(x, fused):
    trunk, _ = batch_norm(dense(x, "trunk"), "trunk/bn", fused)
    losses = {}
    for scope in ("one", "two"):
        with tf.variable_scope(scope):
            y, _ = batch_norm(trunk, "bn", fused)
            losses[scope] = tf.reduce_mean(tf.square(dense(y, "out") - 1.))
    for scope, loss in losses.items():
        got = [name.split("/")[0] for name in names(build(loss, scope))]
        assert got == sorted(["trunk", scope]), got


def test_neither_loss_asks_for_the_others_feeds():
    losses, feeds = {}, {}
    for scope in ("one", "two"):
        with tf.variable_scope(scope):
            feeds[scope] = tf.placeholder(tf.float32, [None, 3])
            y, _ = batch_norm(feeds[scope], "bn")
            losses[scope] = tf.reduce_mean(tf.square(dense(y, "out") - 1.))
    windows = {scope: build(loss, scope) for scope, loss in losses.items()}
    with models.session() as session:
        for scope, ops in windows.items():
            session.run(ops.accumulate, {feeds[scope]: np.ones([4, 3])})


def test_a_given_list_is_run_and_nothing_else(x):
    """A discriminator is given its own: the generator's statistics stay."""
    with tf.variable_scope("generator"):
        fake, generator_moving = batch_norm(dense(x, "in", 3), "bn")
    with tf.variable_scope("discriminator"):
        # What was normalised has the mean 0; this has 1, whatever x is.
        y, discriminator_moving = batch_norm(fake + 1., "bn")
        loss = tf.reduce_mean(tf.square(dense(y, "out") - 1.))
    assert len(build(loss, "discriminator").update_ops) == 2
    assert build(loss, "discriminator", update_ops=[]).update_ops == []
    ops = build(loss, "discriminator", update_ops=tf.get_collection(
        tf.GraphKeys.UPDATE_OPS, "discriminator"))
    with models.session() as session:
        session.run(ops.accumulate, {x: np.random.RandomState(0).randn(4, 3)})
        np.testing.assert_array_equal(
            session.run(generator_moving), np.zeros(3))
        np.testing.assert_allclose(
            session.run(discriminator_moving), np.full(3, DECAY), rtol=1e-5)


def test_a_statistic_that_only_feeds_its_update_and_a_summary_is_reached(x):
    h = dense(x, "in")
    centre = tf.get_variable("centre", [2], trainable=False,
                             initializer=tf.zeros_initializer())
    loss = tf.reduce_mean(tf.square(h - centre - 1.))
    statistic = tf.reduce_max(h, 0)
    update = centre.assign(0.5 * centre + 0.5 * statistic)
    tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, update)
    other = tf.get_variable("other", [2])
    tf.summary.histogram("statistic", statistic)
    tf.summary.histogram("other", other)
    tf.summary.merge_all()
    ops = build(loss, "in")
    assert len(ops.update_ops) == 1
    with models.session() as session:
        batch = np.random.RandomState(0).randn(4, 3)
        expected = 0.5 * batch.dot(session.run(
            tf.trainable_variables("in")[0])).max(0)
        session.run(ops.accumulate, {x: batch})
        np.testing.assert_allclose(session.run(centre), expected, rtol=1e-5)


def test_an_update_listed_twice_runs_once(x):
    y, moving = batch_norm(x, "bn")
    tf.add_to_collection(tf.GraphKeys.UPDATE_OPS,
                         tf.get_collection(tf.GraphKeys.UPDATE_OPS)[0])
    ops = build(tf.reduce_mean(dense(y, "out")), None)
    assert len(ops.update_ops) == 1
    assert moving is not None


def test_what_no_loss_reaches_is_not_run(x):
    counter = tf.get_variable("counter", [], trainable=False)
    tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, counter.assign_add(1.).op)
    assert build(tf.reduce_mean(dense(x, "out")), None).update_ops == []


def in_cond(move):
    tf.cond(tf.placeholder_with_default(False, []), move, lambda: 0.)


def in_while(move):
    tf.while_loop(lambda i: i < 2., lambda i: i + move(), [0.])


@pytest.mark.parametrize("place", [in_cond, in_while])
@pytest.mark.parametrize("resource", [True, False])
def test_an_update_op_inside_control_flow_is_refused_by_name(
        behaviour, place, resource):
    """Row A9: what depends on it would be skipped with it, silently."""
    if behaviour == "eager_off" and not resource:
        # TensorFlow itself refuses a reference variable there.
        return
    x = tf.placeholder(tf.float32, [None, 3])
    v = tf.get_variable("v", [], initializer=tf.zeros_initializer(),
                        trainable=False, use_resource=resource)
    loss = tf.reduce_mean(dense(x, "out") + v)
    updates = []

    def move():
        updates.append(v.assign_add(1.).op)
        with tf.control_dependencies(updates):
            return tf.constant(1.)

    place(move)
    before = len(tf.get_default_graph().get_operations())
    with pytest.raises(ValueError) as error:
        build(loss, "out", update_ops=updates)
    assert len(tf.get_default_graph().get_operations()) == before
    assert updates[0].name in str(error.value)
    assert ("tf1accum.build: an update op must be of the default graph, "
            "outside of every") in str(error.value)


def test_an_update_op_made_from_what_a_cond_or_loop_returns_is_taken(x):
    v = tf.get_variable("v", [], initializer=tf.zeros_initializer(),
                        trainable=False)
    h = dense(x, "out")
    loss = tf.reduce_mean(h + v)
    value = tf.cond(tf.placeholder_with_default(True, []),
                    lambda: tf.reduce_max(h), lambda: 0.)
    value = tf.while_loop(lambda i, s: i < 3, lambda i, s: (i + 1, s + 1.),
                          [0, value])[1]
    update = v.assign(value)
    ops = build(loss, "out", update_ops=[update])
    with models.session() as session:
        batch = np.ones([2, 3])
        expected = session.run(value, {x: batch})
        session.run(ops.accumulate, {x: batch})
        assert session.run(v) == expected


def test_a_decay_that_a_variable_holds_or_a_feed_gives_is_no_bar(x):
    step = tf.train.get_or_create_global_step()
    fed = tf.placeholder(tf.float32, [])
    decay = tf.minimum(0.99, 1. - tf.train.exponential_decay(
        0.5, step, 100, 0.5)) * fed
    mean = tf.reduce_mean(x * 2., 0)
    moving = tf.get_variable("moving", [3], trainable=False,
                             initializer=tf.zeros_initializer())
    tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, tf.assign_sub(
        moving, (moving - mean) * (1. - decay)))
    ops = build(tf.reduce_mean(dense(x * 1. - mean, "out")), "out")
    assert len(ops.update_ops) == 1
    with models.session() as session:
        session.run(ops.accumulate, {x: np.ones([2, 3]), fed: 1.})
        np.testing.assert_allclose(session.run(moving), 2. * 0.5 * np.ones(3))


def test_an_update_made_by_what_a_cond_returns_is_reached(x):
    mean = tf.reduce_mean(x * 2., 0)
    moving = tf.get_variable("moving", [3], trainable=False, use_resource=True,
                             initializer=tf.zeros_initializer())
    flag = tf.placeholder_with_default(True, [])
    tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, tf.cond(
        flag, lambda: tf.group(moving.assign(mean)), tf.no_op))
    ops = build(tf.reduce_mean(dense(x * 1. - mean, "out")), "out")
    with models.session() as session:
        session.run(ops.accumulate, {x: np.ones([2, 3]), flag: False})
        np.testing.assert_array_equal(session.run(moving), np.zeros(3))
        session.run(ops.accumulate, {x: np.ones([2, 3])})
        np.testing.assert_array_equal(session.run(moving), 2. * np.ones(3))
        assert session.run(ops.count) == 2


@pytest.mark.parametrize("fused", [False, True])
def test_two_passes_of_one_model_run_each_their_own(x, fused):
    losses = []
    for number in range(2):
        with tf.variable_scope("model", reuse=tf.AUTO_REUSE):
            h = dense(tf.nn.dropout(x, keep_prob=0.5), "in")
            y, moving = batch_norm(h, "bn", fused)
            losses.append(tf.reduce_mean(dense(y, "out")) + number)
    updates = tf.get_collection(tf.GraphKeys.UPDATE_OPS)
    for update, loss in zip(updates, losses):
        assert build(loss, "model").update_ops == [update]
    assert moving is not None


def test_a_moving_average_of_the_weights_is_reached(x):
    loss = tf.reduce_mean(dense(x, "out"))
    average = tf.train.ExponentialMovingAverage(0.5)
    tf.add_to_collection(
        tf.GraphKeys.UPDATE_OPS, average.apply(tf.trainable_variables()))
    assert len(build(loss, "out").update_ops) == 1


def test_an_update_op_in_a_nested_cond_is_refused():
    """Row A9: merged by the inner cond, and still inside the outer one."""
    x = tf.placeholder(tf.float32, [None, 3])
    v = tf.get_variable("v", [], trainable=False)
    loss = tf.reduce_mean(dense(x, "out") + v)
    updates = []
    yes = tf.placeholder_with_default(True, [])

    def outer():
        updates.append(tf.cond(yes, lambda: v.assign(1.) * 1., lambda: 0.))
        return updates[0]

    tf.cond(tf.placeholder_with_default(False, []), outer, lambda: 0.)
    with pytest.raises(ValueError) as error:
        build(loss, "out", update_ops=updates)
    assert updates[0].op.name in str(error.value)
