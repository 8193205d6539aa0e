"""A batch that one run takes in micro-batches: as if it had been whole."""

import collections
import threading
import warnings

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import models
import tf1accum
from conftest import in_pairs

ROWS, SIZE = 6, 2


class Mixed:
    """loss = mean over examples of |x w + table[id] - y|^2."""

    def __init__(self, scope, use_resource=True, dtype=tf.float32):
        random = np.random.RandomState(0)
        self.scope, self.use_resource, self.dtype = scope, use_resource, dtype
        self.start = [random.randn(3, SIZE), random.randn(ROWS, SIZE)]
        self.inputs = {
            "x": tf.placeholder(dtype, [None, 3], scope + "_x"),
            "pair": (tf.placeholder(tf.int32, [None], scope + "_ids"),
                     [tf.placeholder(dtype, [None, SIZE], scope + "_y")])}

    def loss_fn(self, inputs):
        """Makes its variables when it is first called."""
        with tf.variable_scope(self.scope, use_resource=self.use_resource,
                               reuse=tf.AUTO_REUSE):
            w, table = self.variables = [
                tf.get_variable(name, value.shape, self.dtype,
                                tf.constant_initializer(value))
                for name, value in zip(("w", "table"), self.start)]
        ids, (y,) = inputs["pair"]
        return tf.reduce_mean(tf.reduce_sum(tf.square(
            tf.matmul(inputs["x"], w) + tf.nn.embedding_lookup(table, ids)
            - y), 1))

    def feed(self, batch):
        ids, (y,) = self.inputs["pair"]
        return {self.inputs["x"]: batch[0], ids: batch[1], y: batch[2]}

    def numpy(self, batch):
        """The loss at the start, and its gradients, by NumPy."""
        x, ids, y = batch
        error = x.dot(self.start[0]) + self.start[1][ids] - y
        table = np.zeros_like(self.start[1])
        np.add.at(table, ids, 2. * error / len(x))
        return np.sum(error ** 2) / len(x), x.T.dot(2. * error / len(x)), table


def draw(examples, seed=1):
    random = np.random.RandomState(seed)
    # No id is the last: its row must not move.
    return (random.randn(examples, 3), random.randint(0, ROWS - 1, examples),
            random.randn(examples, SIZE))


def dense_of(rows):
    total = np.zeros(rows.dense_shape, rows.values.dtype)
    total[rows.indices] = rows.values
    return total


def squares(inputs):
    """mean(w x^2): its gradient is mean(x^2)."""
    w = tf.get_variable("w", [], initializer=tf.ones_initializer())
    return tf.reduce_mean(w * tf.square(inputs))


def dense(batch, size):
    """A layer of a default name, as those of `tf.layers`."""
    with tf.variable_scope(None, default_name="dense"):
        kernel = tf.get_variable("kernel", [batch.shape[1], size])
        return tf.matmul(batch, kernel)


def line(batch):
    """mean(w x): its gradient is mean(x)."""
    return tf.reduce_mean(batch * tf.get_variable(
        "w", [], initializer=tf.ones_initializer()))


def seen(log, tensor):
    """`tensor`, and what it is in each micro-batch goes into the list `log`."""
    with tf.control_dependencies([tf.py_func(
            lambda value: log.append(np.array(value)), [tensor], [])]):
        return tf.identity(tensor)


@in_pairs
@pytest.mark.parametrize("k", [1, 3, 4, 12])
@pytest.mark.parametrize("examples", [5, 12])
def test_it_is_the_gradient_of_the_whole_batch(
        behaviour, use_resource, examples, k):
    model = Mixed("model", use_resource)
    pairs, loss = tf1accum.microbatch_gradients(
        model.loss_fn, model.inputs, k)
    assert [variable.op.name for _, variable in pairs] == [
        "model/w", "model/table"]
    with models.session() as session:
        for seed in (1, 2):
            batch = draw(examples, seed)
            w, table, mean = session.run(
                [pairs[0][0], pairs[1][0], loss], model.feed(batch))
            expected = model.numpy(batch)
            np.testing.assert_allclose(mean, expected[0], rtol=1e-5)
            np.testing.assert_allclose(w, expected[1], atol=1e-5)
            np.testing.assert_allclose(
                dense_of(table), expected[2], atol=1e-5)


@pytest.mark.parametrize("optimizer, use_resource", [
    (optimizer, True) for optimizer in sorted(models.OPTIMIZERS)] + [
        ("adam", False), ("momentum", False)])
def test_steps_lead_where_steps_on_the_whole_batch_lead(
        use_resource, optimizer):
    ours, wholes = Mixed("ours", use_resource), Mixed("wholes", use_resource)
    step = tf.get_variable("step", [], tf.int64, tf.zeros_initializer(),
                           trainable=False)
    pairs, _ = tf1accum.microbatch_gradients(ours.loss_fn, ours.inputs, 3)
    grads, _ = tf.clip_by_global_norm([grad for grad, _ in pairs], 3.)
    train = models.OPTIMIZERS[optimizer]().apply_gradients(
        list(zip(grads, ours.variables)), global_step=step)
    loss = wholes.loss_fn(wholes.inputs)
    # Each index once, as the norm of the whole gradient has it.
    grads, _ = tf.clip_by_global_norm([
        tf.gradients(loss, wholes.variables[0])[0],
        tf.convert_to_tensor(tf.gradients(loss, wholes.variables[1])[0])], 3.)
    rows = tf.unique(wholes.inputs["pair"][0])[0]
    train_whole = models.OPTIMIZERS[optimizer]().apply_gradients([
        (grads[0], wholes.variables[0]),
        (tf.IndexedSlices(tf.gather(grads[1], rows), rows, [ROWS, SIZE]),
         wholes.variables[1])])
    with models.session() as session:
        for seed in range(10):
            batch = draw(7, seed)
            session.run(train, ours.feed(batch))
            session.run(train_whole, wholes.feed(batch))
        assert session.run(step) == 10
        for mine, whole in zip(ours.variables, wholes.variables):
            mine, whole = session.run([mine, whole])
            assert np.abs(mine - whole).max() < 1e-4
            assert np.abs(mine - ours.start[
                whole.shape[0] == ROWS]).max() > 1e-3
        np.testing.assert_array_equal(
            mine[-1], ours.start[1][-1].astype(np.float32))


def test_sizes_differ_by_one_at_most_and_the_larger_come_first():
    x, k = tf.placeholder(tf.float32, [None]), tf.placeholder(tf.int64, [])
    log = []
    pairs, _ = tf1accum.microbatch_gradients(
        lambda batch: squares(seen(log, batch)), x, k)
    with models.session() as session:
        for examples, number in ((7, 3), (8, 3), (9, 3), (5, 1), (2, 5),
                                 (1, 4)):
            values = np.arange(1., examples + 1)
            del log[:]
            assert session.run(pairs[0][0], {x: values, k: number}) == (
                pytest.approx(np.mean(values ** 2)))
            expected = [part for part in np.array_split(values, number)
                        if part.size]
            assert [part.tolist() for part in log] == [
                part.tolist() for part in expected]


def test_k_may_be_a_variable():
    x, log = tf.placeholder(tf.float32, [None]), []
    k = tf.get_variable("k", [], tf.int32, tf.ones_initializer(),
                        trainable=False)
    pairs, _ = tf1accum.microbatch_gradients(
        lambda batch: squares(seen(log, batch)), x, k)
    with models.session() as session:
        for number in (1, 2, 4):
            session.run(k.assign(number))
            session.run(pairs[0][0], {x: [1., 2., 3., 4.]})
            assert len(log) == number
            del log[:]


def test_the_structure_and_the_static_shapes_of_the_inputs_stay():
    Point = collections.namedtuple("Point", "x y")
    inputs = {
        "points": Point(tf.zeros([6, 3]), np.ones([6, 2, 2], np.float32)),
        "more": [tf.placeholder(tf.int32, [None, 4]), (tf.placeholder(
            tf.float32), tf.placeholder(tf.float32, [None, None]))]}
    given = []

    def loss_fn(batch):
        given.append(batch)
        return squares(batch["points"].x)

    tf1accum.microbatch_gradients(loss_fn, inputs, 3)
    batch = given[0]
    tf.nest.assert_same_structure(
        batch, {"points": Point(0, 0), "more": [0, (0, 0)]})
    assert isinstance(batch["points"], Point)
    assert batch["points"].y.shape.as_list() == [None, 2, 2]
    assert batch["more"][0].shape.as_list() == [None, 4]
    assert batch["more"][1][0].shape.rank is None
    assert batch["more"][1][1].shape.as_list() == [None, None]


@pytest.mark.parametrize("k, size", [(3, 2), (4, None), (6, 1), (9, 1)])
def test_sizes_are_static_where_all_are_the_same(k, size):
    given = []

    def loss_fn(batch):
        given.append(batch)
        return squares(batch)

    pairs, _ = tf1accum.microbatch_gradients(
        loss_fn, np.arange(1., 7.).astype(np.float32), k)
    assert given[0].shape.as_list() == [size]
    with models.session() as session:
        # (1 + 4 + 9 + 16 + 25 + 36) / 6
        assert session.run(pairs[0][0]) == pytest.approx(91. / 6.)


@in_pairs
def test_weights_give_the_mean_over_tokens(behaviour, use_resource):
    model = Mixed("model", use_resource)
    mask = tf.placeholder(tf.float32, [None])

    def loss_fn(inputs):
        model.loss_fn(inputs[0])
        w, table = model.variables
        ids, (y,) = inputs[0]["pair"]
        each = tf.reduce_sum(tf.square(
            tf.matmul(inputs[0]["x"], w) + tf.nn.embedding_lookup(table, ids)
            - y), 1)
        tokens = tf.reduce_sum(inputs[1])
        # Without a token 0 / 0, a NaN.
        return tf.reduce_sum(each * inputs[1]) / tokens, tokens

    pairs, loss = tf1accum.microbatch_gradients(
        loss_fn, (model.inputs, mask), 3)
    fetches = [loss, pairs[0][0], pairs[1][0]]
    batch = draw(6)
    with models.session() as session:
        for kept in ([1., 1., 1., 0., 1., 0.], [1., 0., 0., 0., 1., 1.]):
            loss, w, table = session.run(
                fetches, {**model.feed(batch), mask: kept})
            expected = model.numpy([
                part[np.array(kept) > 0.] for part in batch])
            np.testing.assert_allclose(loss, expected[0], rtol=1e-5)
            np.testing.assert_allclose(w, expected[1], atol=1e-5)
            np.testing.assert_allclose(
                dense_of(table), expected[2], atol=1e-5)
        loss, w, table = session.run(
            fetches, {**model.feed(batch), mask: [0.] * 6})
        assert loss == 0. and not w.any() and not table.values.size


class Norm:
    """Keeps a moving mean of its batches: m += (mean(x) - m) / 4."""

    def __init__(self, use_resource):
        with tf.variable_scope("norm", use_resource=use_resource):
            self.moving = tf.get_variable(
                "moving", [2], initializer=tf.zeros_initializer(),
                trainable=False)

    def loss_fn(self, batch):
        mean = tf.reduce_mean(batch, 0)
        tf.add_to_collection(
            tf.GraphKeys.UPDATE_OPS,
            self.moving.assign_sub((self.moving - mean) / 4.))
        return squares(batch)


@in_pairs
def test_update_ops_run_one_micro_batch_after_the_other(
        behaviour, use_resource):
    norm = Norm(use_resource)
    x = tf.placeholder(tf.float32, [None, 2])
    outside = tf.no_op()
    tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, outside)
    pairs, _ = tf1accum.microbatch_gradients(norm.loss_fn, x, 5)
    # What is in the loop, nobody else can run.
    assert tf.get_collection(tf.GraphKeys.UPDATE_OPS) == [outside]
    expected, random = np.zeros(2), np.random.RandomState(0)
    with models.session() as session:
        run = session.make_callable(pairs[0][0], feed_list=[x])
        for _ in range(200):
            batch = random.randn(11, 2) + 1.
            run(batch)
            for part in np.array_split(batch, 5):
                expected += (part.mean(axis=0) - expected) / 4.
            np.testing.assert_allclose(
                session.run(norm.moving), expected, atol=1e-5)


@pytest.mark.skipif(
    not hasattr(tf.keras.layers.Layer(), "updates"),
    reason="The Keras layers of this TensorFlow train no graph.")
def test_updates_of_a_keras_layer_run_when_the_loss_collects_them(behaviour):
    layer = tf.keras.layers.BatchNormalization(momentum=.5)

    def loss_fn(batch):
        outputs = layer(batch, training=True)
        for update in layer.updates:
            tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, update)
        return tf.reduce_mean(tf.square(outputs))

    pairs, _ = tf1accum.microbatch_gradients(
        loss_fn, tf.constant([[0.], [2.], [8.], [16.]]), 2)
    with models.session() as session:
        session.run(pairs[0][0])
        # Half of the mean 1, and half of what that left and of the mean 12.
        assert session.run(layer.moving_mean) == pytest.approx([6.25])


def test_dropout_draws_a_new_mask_for_each_micro_batch(behaviour):
    log = []

    def loss_fn(batch):
        return squares(seen(log, tf.nn.dropout(batch, rate=.5)))

    pairs, _ = tf1accum.microbatch_gradients(loss_fn, tf.ones([4, 64]), 4)
    with models.session() as session:
        for _ in range(2):
            session.run(pairs[0][0])
    assert len({tuple(mask.ravel()) for mask in log}) == 8


def test_variables_without_a_gradient_are_left_out_with_a_warning():
    def loss_fn(batch):
        tf.get_variable("unused", [])
        return squares(batch)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        pairs, _ = tf1accum.microbatch_gradients(loss_fn, tf.ones([4]), 2)
    assert [variable.op.name for _, variable in pairs] == ["w"]
    warning, = [each for each in caught if "unused:0" in str(each.message)]
    assert warning.filename == __file__


def test_half_precision_adds_up_in_float32(behaviour):
    def loss_fn(batch):
        w = tf.get_variable("w", [], tf.float16)
        table = tf.get_variable("table", [2], tf.float16)
        return tf.reduce_mean(
            (w + tf.gather(table, [0, 0])[0]) * batch)

    # In float16, 2048 + 1 is 2048.
    values = np.array([2048.] + [1.] * 2047, np.float16)
    pairs, loss = tf1accum.microbatch_gradients(loss_fn, values, 2048)
    with models.session() as session:
        dense, rows = session.run([pair[0] for pair in pairs])
        for value in (dense, rows.values[0]):
            assert value.dtype == np.float16
            assert value == pytest.approx(4095. / 2048., abs=2e-3)
        assert loss.dtype == tf.float16


@in_pairs
def test_variables_made_in_it_are_those_of_the_callers_scope(
        behaviour, use_resource):
    def loss_fn(batch):
        hidden = dense(dense(batch, 3), 3)
        with tf.name_scope("inner"):
            scale = tf.Variable(lambda: tf.ones([]), name="scale")
        return tf.reduce_mean(hidden) * scale

    with tf.variable_scope("outer", use_resource=use_resource):
        pairs, _ = tf1accum.microbatch_gradients(loss_fn, tf.ones([6, 2]), 3)
    names = ["outer/dense/kernel", "outer/dense_1/kernel",
             "outer/inner/scale"]
    assert [v.op.name for v in tf.trainable_variables()] == names
    assert [variable.op.name for _, variable in pairs] == names
    with tf.variable_scope("outer", reuse=True):
        dense(tf.ones([6, 2]), 3)
    assert len(tf.global_variables()) == 3
    with models.session() as session:
        session.run([grad for grad, _ in pairs])


@in_pairs
def test_variables_made_in_it_may_start_as_tensors(behaviour, use_resource):
    """The ops that make the values are in the loop, and needed outside."""
    two = tf.constant([2., 2.]) * 1.

    def loss_fn(batch):
        with tf.variable_scope("", use_resource=use_resource):
            variables = [
                tf.Variable(tf.random_normal([2])),
                tf.Variable(2. * tf.cast(tf.fill([2], 1), tf.float32)),
                tf.get_variable("u", initializer=tf.ones([2]) * 3.),
                tf.Variable(two), tf.Variable(two + 3.)]
        return tf.reduce_mean(tf.add_n([
            tf.reduce_sum(batch * v, 1) for v in variables]))

    pairs, _ = tf1accum.microbatch_gradients(
        loss_fn, tf.constant([[1., 3.], [3., 5.], [5., 7.]]), 2)
    with models.session() as session:
        for grad in session.run([grad for grad, _ in pairs]):
            np.testing.assert_allclose(grad, [3., 5.])
        values = session.run(tf.global_variables())
    assert np.all(np.abs(values[0]) > 0.)
    assert [value.tolist() for value in values[1:]] == [
        [2., 2.], [3., 3.], [2., 2.], [5., 5.]]


def test_a_variable_that_starts_as_a_micro_batch_is_refused(behaviour):
    def loss_fn(batch):
        return tf.reduce_mean(batch * tf.Variable(tf.reduce_mean(batch)))

    with pytest.raises(ValueError) as error:
        tf1accum.microbatch_gradients(loss_fn, tf.ones([4]), 2)
    for word in ("the initial value of a variable must not come out of a loop",
                 "that over micro-batches", "Pass a function"):
        assert word in str(error.value)


def test_a_call_that_failed_leaves_no_collection_with_what_is_in_its_loop(
        behaviour):
    def loss_fn(batch):
        tf.summary.scalar("mean", tf.reduce_mean(batch))
        tf.add_to_collection(
            tf.GraphKeys.UPDATE_OPS, tf.assign(moving, tf.reduce_mean(batch)))
        return batch * tf.get_variable("w", [])

    moving = tf.get_variable("moving", [], trainable=False)
    with pytest.raises(ValueError):
        tf1accum.microbatch_gradients(loss_fn, tf.ones([4]), 2)
    assert tf.get_collection(tf.GraphKeys.UPDATE_OPS) == []
    assert tf.get_collection(tf.GraphKeys.SUMMARIES) == []


def test_a_regularizer_is_in_every_micro_batchs_loss_once(behaviour):
    def loss_fn(batch):
        with tf.variable_scope("model", regularizer=lambda w: 3. * w * w):
            loss = squares(batch)
        return loss + tf.losses.get_regularization_loss()

    pairs, loss = tf1accum.microbatch_gradients(loss_fn, tf.ones([5]), 3)
    # d/dw (w + 3 w^2), at 1.
    with models.session() as session:
        assert session.run([pairs[0][0], loss]) == pytest.approx([7., 4.])
        assert session.run(tf.losses.get_regularization_loss()) == 3.


def test_a_regularizer_that_the_loss_leaves_out_can_be_used_outside(behaviour):
    with tf.variable_scope("model", regularizer=lambda w: 3. * w * w):
        tf1accum.microbatch_gradients(squares, tf.ones([5]), 3)
    loss = tf.losses.get_regularization_loss()
    with models.session() as session:
        assert session.run(loss) == 3.


def test_a_gradient_that_no_micro_batch_changes_counts_in_each():
    def loss_fn(batch):
        w = tf.get_variable("w", [3], initializer=tf.ones_initializer())
        return tf.reduce_sum(w * w) + 0. * tf.reduce_sum(batch)

    pairs, _ = tf1accum.microbatch_gradients(loss_fn, tf.ones([8]), 4)
    config = tf.ConfigProto()
    rewrites = config.graph_options.rewrite_options
    rewrites.loop_optimization = rewrites.AGGRESSIVE
    rewrites.dependency_optimization = rewrites.AGGRESSIVE
    rewrites.min_graph_nodes = -1
    with tf.Session(config=config) as session:
        session.run(tf.global_variables_initializer())
        for _ in range(20):
            np.testing.assert_allclose(session.run(pairs[0][0]), [2.] * 3)


@in_pairs
def test_loops_and_branches_of_the_model_work(behaviour, use_resource):
    """loss = mean(w^3 x, or w^3 where the mean of x is negative)."""
    x = tf.placeholder(tf.float32, [None])

    def loss_fn(batch):
        with tf.variable_scope("model", use_resource=use_resource):
            w = tf.get_variable("w", [], initializer=tf.ones_initializer())
        _, cube = tf.while_loop(lambda i, _: i < 3,
                                lambda i, value: (i + 1, value * w),
                                [0, tf.ones([])])
        return cube * tf.cond(tf.reduce_mean(batch) < 0., lambda: 1.,
                              lambda: tf.reduce_mean(batch))

    pairs, _ = tf1accum.microbatch_gradients(loss_fn, x, 3)
    with models.session() as session:
        # 3 (2 + 1 + 6) / 3
        assert session.run(pairs[0][0], {x: [2., -3., 6.]}) == 9.


@in_pairs
def test_a_recurrent_network_equals_the_whole_batch(behaviour, use_resource):
    x = tf.placeholder(tf.float32, [None, 5, 2])

    def loss_fn(batch):
        with tf.variable_scope("rnn", reuse=tf.AUTO_REUSE,
                               use_resource=use_resource):
            w = tf.get_variable("w", [2, 2])
        outputs = tf.scan(
            lambda state, step: tf.tanh(tf.matmul(state, w) + step),
            tf.transpose(batch, [1, 0, 2]), tf.zeros_like(batch[:, 0]))
        return tf.reduce_mean(tf.square(outputs))

    pairs, _ = tf1accum.microbatch_gradients(loss_fn, x, 3)
    tf.disable_control_flow_v2()
    wholes = tf.gradients(loss_fn(x), [variable for _, variable in pairs])
    with models.session() as session:
        for ours, whole in session.run(
                list(zip([grad for grad, _ in pairs], wholes)),
                {x: np.random.RandomState(0).randn(7, 5, 2)}):
            np.testing.assert_allclose(ours, whole, atol=1e-6)


def test_variables_in_parts_and_of_open_shape_are_taken(use_resource):
    with tf.variable_scope("model", use_resource=use_resource):
        parts = tf.get_variable(
            "parts", [4], initializer=tf.ones_initializer(),
            partitioner=tf.fixed_size_partitioner(2))
        open_ = tf.get_variable(
            "open", initializer=tf.placeholder_with_default(
                tf.ones([4]), [None]), validate_shape=False)
    x = tf.placeholder(tf.float32, [None, 4])
    pairs, _ = tf1accum.microbatch_gradients(
        lambda batch: tf.reduce_mean(
            tf.reduce_sum(batch * open_ * parts, 1)), x, 2,
        var_list=[parts, open_])
    batch = np.arange(12.).reshape(3, 4)
    with models.session() as session:
        first, second, whole = session.run(
            [grad for grad, _ in pairs], {x: batch})
    np.testing.assert_allclose(
        np.concatenate([first, second]), batch.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(whole, batch.mean(axis=0), rtol=1e-6)


def test_an_optimizers_own_compute_gradients_is_used():
    class Clipping(tf.train.GradientDescentOptimizer):
        def compute_gradients(self, *args, **kwargs):
            return [(tf.minimum(grad, 2.), variable) for grad, variable in
                    super(Clipping, self).compute_gradients(*args, **kwargs)]

    pairs, loss = tf1accum.microbatch_gradients(
        squares, tf.constant([1., 2., 3.]), 3, optimizer=Clipping(1.))
    with models.session() as session:
        # min(1, 2), min(4, 2), min(9, 2); and the loss as it is.
        assert session.run([pairs[0][0], loss]) == pytest.approx(
            [5. / 3., 14. / 3.])


def test_what_the_caller_waits_for_is_waited_for(behaviour):
    w = tf.get_variable("w", [], initializer=tf.ones_initializer(),
                        use_resource=True)
    with tf.control_dependencies([w.assign(5.)]):
        pairs, _ = tf1accum.microbatch_gradients(
            lambda batch: tf.reduce_mean(tf.square(w.read_value()) * batch),
            tf.ones([4]), 2)
    with models.session() as session:
        assert session.run(pairs[0][0]) == 10.


def test_the_model_is_on_the_device_of_the_caller():
    with tf.device("/cpu:0"):
        pairs, _ = tf1accum.microbatch_gradients(squares, tf.ones([4]), 2)
    square, = [op for op in tf.get_default_graph().get_operations()
               if op.type == "Square"]
    assert square.device == pairs[0][1].device == "/device:CPU:0"


def test_all_that_is_added_is_in_one_box_but_the_variables():
    def loss_fn(batch):
        with tf.variable_scope("model", reuse=tf.AUTO_REUSE):
            return squares(batch)

    with tf.name_scope("tower"):
        for scope in ("tower/microbatch/", "tower/microbatch_1/"):
            before = {op.name for op in
                      tf.get_default_graph().get_operations()}
            pairs, loss = tf1accum.microbatch_gradients(
                loss_fn, tf.ones([4], name="x"), 2)
            assert pairs[0][0].op.name == scope + "mean/model/w"
            assert loss.op.name == scope + "mean/loss"
            added = {op.name for op in
                     tf.get_default_graph().get_operations()} - before
            assert {name for name in added if not name.startswith(
                (scope, "tower/x", "model/w"))} == set()


def test_no_variable_is_added():
    with tf.variable_scope("model"):
        tf1accum.microbatch_gradients(squares, tf.ones([4]), 2)
    assert [v.op.name for v in tf.global_variables()] == ["model/w"]
    assert tf.local_variables() == []


def test_summaries_and_losses_of_the_loop_leave_no_trace(behaviour):
    tf.summary.scalar("outside", tf.constant(1.))

    def loss_fn(batch):
        tf.summary.scalar("inside", tf.reduce_mean(batch))
        w = tf.get_variable("w", [], initializer=tf.ones_initializer())
        return tf.losses.mean_squared_error(batch, w * tf.ones_like(batch))

    tf1accum.microbatch_gradients(loss_fn, tf.ones([4]), 2)
    assert tf.losses.get_losses() == []
    with models.session() as session:
        summary = tf.Summary.FromString(session.run(tf.summary.merge_all()))
    assert [value.tag for value in summary.value] == ["outside"]


def test_the_version_of_control_flow_stays(behaviour):
    def failing(batch):
        raise KeyError("mine")

    tf1accum.microbatch_gradients(squares, tf.ones([4]), 2)
    with pytest.raises(KeyError, match="mine"):
        tf1accum.microbatch_gradients(failing, tf.ones([4]), 2)
    assert tf.control_flow_v2_enabled() == (behaviour == "eager_off")


def test_runs_may_overlap():
    x = tf.placeholder(tf.float32, [None, 500])

    def loss_fn(batch):
        w = tf.get_variable("w", [500], initializer=tf.ones_initializer())
        table = tf.get_variable("table", [3, 500])
        return tf.reduce_mean(batch * (w + tf.gather(table, [0, 0])[0])) * 500.

    pairs, _ = tf1accum.microbatch_gradients(loss_fn, x, 4)
    wrong = []
    with models.session() as session:
        def run(value):
            for _ in range(50):
                w, rows = session.run([grad for grad, _ in pairs], {
                    x: np.full([8, 500], value)})
                if not (np.allclose(w, value)
                        and np.allclose(rows.values, value)):
                    wrong.append((value, w, rows))

        threads = [threading.Thread(target=run, args=(float(value),))
                   for value in range(1, 7)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_a_graph_that_was_imported_runs():
    model = Mixed("model")
    pairs, loss = tf1accum.microbatch_gradients(model.loss_fn, model.inputs, 3)
    train = tf.train.GradientDescentOptimizer(.1).apply_gradients(
        pairs, name="train")
    meta_graph = tf.train.export_meta_graph()
    batch = draw(5)
    feed = {"imported/" + placeholder.name: value
            for placeholder, value in model.feed(batch).items()}
    with tf.Graph().as_default():
        tf.train.import_meta_graph(meta_graph, import_scope="imported")
        with models.session() as session:
            before, _ = session.run(
                ["imported/" + loss.name, "imported/" + train.name], feed)
            assert before == pytest.approx(model.numpy(batch)[0])
            assert session.run("imported/" + loss.name, feed) < before


def test_eager_execution_is_refused(monkeypatch):
    monkeypatch.setattr(tf, "executing_eagerly", lambda: True)
    with pytest.raises(RuntimeError, match="tf1accum.microbatch_gradients: "
                       "needs a graph to build in"):
        tf1accum.microbatch_gradients(squares, np.ones(4), 2)


RUN_ERRORS = [
    ({"x": [], "y": []}, 2, "the batch must hold an example; got none"),
    ({"x": [1.], "y": [1., 2.]}, 2,
     "all inputs must hold as many examples.*got.*1 2"),
    ({"x": [1.], "y": [1.]}, 0, "k must be positive; got.*0")]


@pytest.mark.parametrize("values, number, message", RUN_ERRORS)
def test_a_run_refuses_what_cannot_be_split(values, number, message):
    inputs = {key: tf.placeholder(tf.float32, [None]) for key in "xy"}
    k = tf.placeholder_with_default(np.int32(2), [])
    pairs, _ = tf1accum.microbatch_gradients(
        lambda batch: squares(batch["x"] + batch["y"]), inputs, k)
    with models.session() as session:
        feed = {inputs[key]: values[key] for key in "xy"}
        with pytest.raises(
                tf.errors.InvalidArgumentError,
                match="(?s)tf1accum.microbatch_gradients: " + message):
            session.run(pairs[0][0], {**feed, k: number})


BUILD_ERRORS = {
    "loss_fn": (TypeError, "loss_fn must be a function.*got 3",
                lambda: dict(loss_fn=3)),
    "no inputs": (ValueError, "inputs must hold a tensor; got an empty",
                  lambda: dict(inputs={})),
    "list": (TypeError, r"inputs must be tensors \[examples, ...\].*got 1\.0",
             lambda: dict(inputs=[1., 2.])),
    "sparse": (TypeError, "inputs must be tensors.*got .*Sparse.*Make sparse",
               lambda: dict(inputs=tf.sparse.from_dense([[1.]]))),
    "scalar": (ValueError, "first dimension; got the scalar number:0",
               lambda: dict(inputs=tf.constant(1., name="number"))),
    "scalar array": (ValueError, "first dimension; got the scalar an array",
                     lambda: dict(inputs=np.array(1.))),
    "sizes": (ValueError, r"as many examples.*two:0 of shape \(2, 3\), "
              r"an array of shape \(4,\)\.",
              lambda: dict(inputs=[tf.zeros([2, 3], name="two"),
                                   np.zeros(4)])),
    "empty": (ValueError, "the batch must hold an example; got none",
              lambda: dict(inputs=tf.zeros([0, 3]))),
    "k": (ValueError, "k, .*must be a positive integer; got 0",
          lambda: dict(k=0)),
    "k type": (TypeError, "k, .*must be a positive integer; got 2.5",
               lambda: dict(k=2.5)),
    "k tensor": (TypeError, "k, as a tensor, must be one integer; got kk:0",
                 lambda: dict(k=tf.constant([1, 2], name="kk"))),
    "var_list": (TypeError, "var_list must hold variables; got",
                 lambda: dict(var_list=[tf.ones([])])),
    "optimizer": (TypeError, "optimizer must be an object with compute",
                  lambda: dict(optimizer=tf.train.AdamOptimizer)),
    "name": (ValueError, "name must be one scope", lambda: dict(name="a/b")),
    "in a loop": (ValueError, "inputs must be outside of every tf.cond branch",
                  lambda: dict(inputs=one_in_a_loop())),
}


def one_in_a_loop():
    inside = []

    def body(i):
        inside.append(tf.ones([4]) * tf.cast(i, tf.float32))
        return i + 1

    tf.while_loop(lambda i: i < 2, body, [0])
    return inside[0]


@pytest.mark.parametrize("what", sorted(BUILD_ERRORS))
def test_a_call_that_is_refused_adds_no_op(what):
    kind, message, make = BUILD_ERRORS[what]
    given = make()
    arguments = dict(loss_fn=squares, inputs=tf.ones([4]), k=2)
    arguments.update(given)
    number = len(tf.get_default_graph().get_operations())
    with pytest.raises(
            kind, match="tf1accum.microbatch_gradients: .*" + message):
        tf1accum.microbatch_gradients(**arguments)
    assert len(tf.get_default_graph().get_operations()) == number


def in_branch(value):
    inside = []

    def branch():
        inside.append(tf.identity(value))
        return inside[0]

    tf.cond(tf.reduce_sum(value) > 0., branch, lambda: value)
    return inside[0]


def with_update_op_in_branch(batch):
    tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, in_branch(batch).op)
    return line(batch)


LOSS_ERRORS = {
    "none": (TypeError, "loss must be a tensor; got None", lambda batch: None),
    "vector": (ValueError, "loss must be one number",
               lambda batch: line(batch) * batch),
    "integer": (TypeError, "loss must be of a float type",
                lambda batch: tf.constant(1)),
    "weight": (TypeError, "weight must be a scalar tensor",
               lambda batch: (line(batch), 3.)),
    "weights": (ValueError, "weight must be a scalar",
                lambda batch: (line(batch), batch)),
    "branch": (ValueError, "loss must be outside of every tf.cond branch",
               lambda batch: in_branch(line(batch))),
    "weight in branch": (
        ValueError, "weight must be outside of every tf.cond branch",
        lambda batch: (line(batch), in_branch(tf.reduce_sum(batch)))),
    "update op": (ValueError, "an update op must be of the default graph",
                  with_update_op_in_branch),
    "no variable": (ValueError, "var_list holds no variable",
                    lambda batch: tf.reduce_mean(batch)),
    "no gradient": (ValueError, "at least one variable must have a gradient; "
                    "the loss has none for w:0",
                    lambda batch: tf.stop_gradient(line(batch))),
}


@pytest.mark.parametrize("what", sorted(LOSS_ERRORS))
def test_what_the_loss_function_returns_is_checked(what):
    kind, message, loss_fn = LOSS_ERRORS[what]
    with pytest.raises(
            kind, match="tf1accum.microbatch_gradients: .*" + message):
        tf1accum.microbatch_gradients(loss_fn, tf.ones([4]), 2)


def test_it_is_not_built_inside_of_a_branch(behaviour):
    x = tf.ones([4])
    with pytest.raises(ValueError, match="call it outside of every tf.cond"):
        tf.cond(tf.constant(True), lambda: tf1accum.microbatch_gradients(
            squares, x, 2)[1], lambda: tf.zeros([]))
