"""Sparse gradients: rows from the gradient to the optimizer."""

import threading

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import models
import tf1accum
from conftest import in_pairs

ROWS, SIZE = 12, 3

# Those whose rule for rows differs from their rule for a dense gradient.
LAZY = ["momentum", "rmsprop", "ftrl", "adam"]


class Lookup:
    """loss = mean over ids of sum((table[id] - 1)^2) * 0.5."""

    def __init__(self, scope="lookup", use_resource=True, dtype=tf.float32,
                 rows=ROWS, partitioner=None):
        self.start = np.random.RandomState(3).uniform(
            0.5, 2., [rows, SIZE]).astype(np.float32)
        self.ids = tf.placeholder(tf.int32, [None], scope + "_ids")
        with tf.variable_scope(scope, use_resource=use_resource,
                               partitioner=partitioner):
            self.table = tf.get_variable(
                "table", [rows, SIZE], dtype, initializer=lambda shape,
                dtype=None, partition_info=None: tf.cast(
                    self.start[:shape[0]], dtype))
        self.variables = [self.table]
        self.loss = tf.reduce_mean(tf.reduce_sum(0.5 * tf.square(
            tf.nn.embedding_lookup(self.table, self.ids) - 1.), 1))

    def gradient(self, value, ids):
        """The dense gradient at `value`, by NumPy: repeated ids add up."""
        grad = np.zeros_like(value)
        np.add.at(grad, ids, (value[ids] - 1.) / len(ids))
        return grad


def id_batches(number, size=5, high=8, seed=0):
    """Ids with repeats, none of them in the last rows of the table."""
    random = np.random.RandomState(seed)
    return [random.randint(0, high, size) for _ in range(number)]


def build(model, optimizer=None, k=3, **kwargs):
    return tf1accum.build(
        model.loss, model.variables,
        optimizer=optimizer or tf.train.GradientDescentOptimizer(0.1), k=k,
        **kwargs)


def dense_of(rows):
    total = np.zeros(rows.dense_shape, rows.values.dtype)
    np.add.at(total, rows.indices, rows.values)
    return total


@in_pairs
@pytest.mark.parametrize("optimizer, k", [("adam", 1)] + [
    (optimizer, 3) for optimizer in sorted(models.OPTIMIZERS)])
def test_windows_of_lookups_equal_whole_batches_of_them(
        behaviour, use_resource, optimizer, k):
    """Rows E3, E5 and E6: no optimizer touches rows that nobody looked up."""
    windows = Lookup("windows", use_resource)
    wholes = Lookup("wholes", use_resource)
    step = models.OPTIMIZERS[optimizer]().minimize(
        wholes.loss, var_list=wholes.variables)
    ops = build(windows, models.OPTIMIZERS[optimizer](), k)
    with models.session() as session:
        for start in range(20):
            ids = id_batches(k, seed=start)
            for batch in ids:
                session.run(ops.accumulate, {windows.ids: batch})
            session.run(ops.apply_and_reset)
            session.run(step, {wholes.ids: np.concatenate(ids)})
        values = dict(zip([v.op.name for v in tf.global_variables()],
                          session.run(tf.global_variables())))
        untouched = session.run(windows.table)[8:]
    if optimizer in LAZY:
        np.testing.assert_array_equal(untouched, windows.start[8:])
    for name, value in values.items():
        if name.startswith("wholes"):
            np.testing.assert_allclose(
                values["windows" + name[6:]], value, rtol=2e-5, atol=2e-6,
                err_msg=name)


@in_pairs
@pytest.mark.parametrize("optimizer", LAZY)
def test_between_applies_of_rows_nothing_moves(
        behaviour, use_resource, optimizer):
    model = Lookup(use_resource=use_resource)
    ops = build(model, models.OPTIMIZERS[optimizer]())
    with models.session() as session:
        for _ in range(2):
            before = models.outside_values(session, ops)
            session.run(ops.apply)
            for ids in id_batches(3):
                session.run(ops.accumulate, {model.ids: ids})
            models.assert_same_bits(
                before, models.outside_values(session, ops))
            session.run(ops.apply)
            before = models.outside_values(session, ops)
            session.run(ops.reset)
            session.run(ops.apply_and_reset)
            models.assert_same_bits(
                before, models.outside_values(session, ops))


@in_pairs
def test_duplicates_within_and_across_micro_batches_add_up(
        behaviour, use_resource):
    """Row E3."""
    model = Lookup(use_resource=use_resource)
    ops = build(model)
    batches = [[1, 1, 2], [2, 1], [1, 1, 1, 1]]
    with models.session() as session:
        for ids in batches:
            session.run(ops.accumulate, {model.ids: ids})
        expected = np.mean(
            [model.gradient(model.start, ids) for ids in batches], axis=0)
        rows = session.run(ops.accumulators[0])
        np.testing.assert_allclose(dense_of(rows), expected, rtol=1e-5)
        session.run(ops.apply)
        np.testing.assert_allclose(
            session.run(model.table), model.start - 0.1 * expected, rtol=1e-5)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_short_or_long_window_of_rows_is_the_mean_of_what_came(size):
    """Row B6, sparse."""
    model = Lookup()
    ops = build(model)
    with models.session() as session:
        batches = id_batches(size)
        for ids in batches:
            session.run(ops.accumulate, {model.ids: ids})
        session.run(ops.apply)
        np.testing.assert_allclose(
            session.run(model.table), model.start - 0.1 * np.mean(
                [model.gradient(model.start, ids) for ids in batches], axis=0),
            rtol=1e-5)


def test_the_room_follows_the_rows_touched_and_not_the_lookups():
    """Row E7: 400 micro-batches of 50 lookups of 4 rows need little room."""
    model = Lookup(rows=100000)
    ops = build(model, k=400)
    buffers = [v for v in tf.global_variables()
               if v.op.name.startswith("accumulation/lookup/table")]
    random = np.random.RandomState(0)
    expected = np.zeros(model.start.shape)
    with models.session() as session:
        room = []
        for _ in range(400):
            ids = random.randint(0, 4, 50)
            expected += model.gradient(model.start, ids) / 400
            session.run(ops.accumulate, {model.ids: ids})
            room.append(len(session.run(buffers[1])))
        # Twice the distinct rows and one micro-batch.
        assert max(room) <= 2 * (4 + 50)
        np.testing.assert_allclose(
            dense_of(session.run(ops.accumulators[0])), expected, rtol=1e-4)
        session.run(ops.reset)
        # Once made, room is kept for the next window.
        session.run(ops.accumulate, {model.ids: [1]})
        assert len(session.run(buffers[1])) == room[-1]


def test_many_distinct_rows_are_all_kept():
    model = Lookup(rows=5000)
    ops = build(model, k=30)
    with models.session() as session:
        for window in range(2):
            expected = np.zeros(model.start.shape)
            value = session.run(model.table)
            for i in range(30):
                ids = np.random.RandomState(i).permutation(5000)[:100 + i]
                expected += model.gradient(value, ids) / 30
                session.run(ops.accumulate, {model.ids: ids})
            np.testing.assert_allclose(
                dense_of(session.run(ops.accumulators[0])), expected,
                rtol=1e-4, atol=1e-8)
            session.run(ops.apply_and_reset)
            np.testing.assert_allclose(
                session.run(model.table), value - 0.1 * expected, rtol=1e-5)


def test_a_micro_batch_without_lookups_is_one_of_zeros():
    model = Lookup()
    loss = tf.reduce_sum(tf.nn.embedding_lookup(model.table, model.ids))
    ops = tf1accum.build(
        loss, model.variables,
        optimizer=tf.train.GradientDescentOptimizer(1.), k=2)
    with models.session() as session:
        session.run(ops.accumulate, {model.ids: []})
        session.run(ops.accumulate, {model.ids: [2]})
        session.run(ops.apply_and_reset)
        expected = model.start.copy()
        expected[2] -= 0.5
        np.testing.assert_allclose(session.run(model.table), expected)
        session.run(ops.accumulate, {model.ids: []})
        session.run(ops.apply_and_reset)
        np.testing.assert_allclose(session.run(model.table), expected)


def test_eight_threads_lose_no_row(behaviour):
    """TensorFlow's own scatter_add loses up to a third of them."""
    table = tf.get_variable("table", [50, 4], tf.float64,
                            tf.zeros_initializer(), use_resource=True)
    ids = tf.placeholder(tf.int64, [None])
    grad = tf.IndexedSlices(tf.ones([tf.size(ids), 4], tf.float64), ids,
                            tf.constant([50, 4], tf.int64))
    ops = tf1accum.build_from_gradients(
        [(grad, table)], k=4, reduction="sum",
        optimizer=tf.train.GradientDescentOptimizer(1.))
    with models.session() as session:
        def run(thread):
            random = np.random.RandomState(thread)
            for _ in range(200):
                session.run(ops.accumulate, {ids: random.randint(0, 50, 7)})
        threads = [threading.Thread(target=run, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        expected = sum(np.bincount(
            np.random.RandomState(thread).randint(0, 50, 7 * 200),
            minlength=50) for thread in range(8))
        total = dense_of(session.run(ops.accumulators[0]))
        # Each run draws seven ids, so that one draw of all gives the same.
        np.testing.assert_array_equal(total.sum(), 8 * 200 * 7 * 4)
        np.testing.assert_array_equal(total[:, 0].sum(), expected.sum())
        assert session.run(ops.count) == 1600


def test_an_open_window_of_rows_comes_back_from_a_checkpoint(tmp_path):
    values = []
    for interrupted in (False, True):
        with tf.Graph().as_default():
            model = Lookup()
            ops = build(model, tf.train.MomentumOptimizer(0.1, 0.9))
            saver = tf.train.Saver()
            batches = id_batches(6)
            session = models.session()
            for i, ids in enumerate(batches):
                if interrupted and i == 4:
                    saver.save(session, str(tmp_path / "open"))
                    session.close()
                    session = tf.Session()
                    saver.restore(session, str(tmp_path / "open"))
                session.run(ops.accumulate, {model.ids: ids})
                if i % 3 == 2:
                    session.run(ops.apply_and_reset)
            values.append(session.run(model.table))
            session.close()
    np.testing.assert_array_equal(*values)


def test_dense_is_there_for_who_wants_it(use_resource):
    """Row E5: and then Momentum moves rows that nobody looked up."""
    model = Lookup(use_resource=use_resource)
    ops = build(model, tf.train.MomentumOptimizer(0.1, 0.9), k=1,
                sparse="dense")
    assert isinstance(ops.accumulators[0], tf.Tensor)
    expected, slot = model.start.copy(), np.zeros_like(model.start)
    with models.session() as session:
        for ids in ([1, 1], [2]):
            slot = 0.9 * slot + model.gradient(expected, ids)
            expected = expected - 0.1 * slot
            session.run(ops.accumulate, {model.ids: ids})
            session.run(ops.apply_and_reset)
        np.testing.assert_allclose(
            session.run(model.table), expected, rtol=1e-5)


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
def test_half_precision_rows_add_up_in_float32(use_resource, dtype):
    """Row E12, sparse: 4,096 times 1/1024 stalls long before 4."""
    table = tf.get_variable("table", [4, 1], dtype, tf.zeros_initializer(),
                            use_resource=use_resource)
    grad = tf.IndexedSlices(tf.fill([64, 1], tf.cast(1. / 1024., dtype)),
                            tf.ones([64], tf.int32),
                            tf.constant([4, 1]))
    taken = []

    class Optimizer:
        def apply_gradients(self, grads_and_vars):
            taken.extend(grads_and_vars)
            return tf.group(*[g.values for g, _ in grads_and_vars])

    ops = tf1accum.build_from_gradients(
        [(grad, table)], optimizer=Optimizer(), k=64, reduction="sum")
    assert ops.accumulators[0].dtype == tf.float32
    assert taken[0][0].dtype == dtype
    with models.session() as session:
        for _ in range(64):
            session.run(ops.accumulate)
        total = dense_of(session.run(ops.accumulators[0]))
        np.testing.assert_array_equal(total[:, 0], [0., 4., 0., 0.])


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_nce_loss_obeys_the_law(optimizer):
    """Two tables and a bias, all sparse, each with rows of its own."""
    twins = {}
    for scope in ("windows", "wholes"):
        with tf.variable_scope(scope):
            ids = tf.placeholder(tf.int64, [None])
            labels = tf.placeholder(tf.int64, [None, 1])
            init = tf.random_normal_initializer(seed=1)
            table = tf.get_variable("table", [20, 4], initializer=init)
            w = tf.get_variable("w", [20, 4], initializer=init)
            b = tf.get_variable("b", [20], initializer=tf.zeros_initializer())
            negatives = (tf.constant([3, 5, 5], tf.int64), tf.fill(
                [tf.size(ids), 1], 0.2), tf.fill([3], 0.2))
            loss = tf.reduce_mean(tf.nn.nce_loss(
                w, b, labels, tf.nn.embedding_lookup(table, ids), 3, 20,
                sampled_values=negatives))
            twins[scope] = (ids, labels, loss, [table, w, b])
    ids, labels, loss, variables = twins["wholes"]
    step = models.OPTIMIZERS[optimizer]().minimize(loss, var_list=variables)
    own_ids, own_labels, own_loss, own_variables = twins["windows"]
    ops = tf1accum.build(own_loss, own_variables,
                         optimizer=models.OPTIMIZERS[optimizer](), k=2)
    with models.session() as session:
        for seed in range(10):
            random = np.random.RandomState(seed)
            batches = [(random.randint(0, 9, 4), random.randint(0, 9, [4, 1]))
                       for _ in range(2)]
            for batch in batches:
                session.run(ops.accumulate, dict(zip(
                    [own_ids, own_labels], batch)))
            session.run(ops.apply_and_reset)
            session.run(step, dict(zip(
                [ids, labels], models.whole(batches))))
        for one, other in zip(session.run(own_variables),
                              session.run(variables)):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_the_rows_accumulator_is_named_after_its_variable():
    ops = build(Lookup(), tf.train.AdamOptimizer())
    own = [v.op.name for v in tf.global_variables()
           if v.op.name.startswith("accumulation/lookup")]
    assert own == ["accumulation/lookup/table/values",
                   "accumulation/lookup/table/indices",
                   "accumulation/lookup/table/used"]
    assert not [v for v in tf.trainable_variables()
                if v.name.startswith(ops.name)]
    assert [v.op.name for v in tf1accum.model_variables()] == ["lookup/table"]


def test_what_was_reset_never_comes_back(behaviour):
    """A reset in the middle of a micro-batch takes it, or leaves it, whole."""
    rows = 4000
    table = tf.get_variable("table", [2, 64], initializer=tf.zeros_initializer(),
                            use_resource=True)
    row = tf.placeholder(tf.int64, [])
    grad = tf.IndexedSlices(
        tf.ones([rows, 64]), tf.fill([rows], row), tf.constant([2, 64]))
    ops = tf1accum.build_from_gradients(
        [(grad, table)], k=1, reduction="sum",
        optimizer=tf.train.GradientDescentOptimizer(1.))
    with models.session() as session:
        for _ in range(150):
            session.run(ops.accumulate, {row: 0})
            other = threading.Thread(
                target=lambda: session.run(ops.accumulate, {row: 1}))
            other.start()
            session.run(ops.reset)
            other.join()
            seen = session.run(ops.accumulators[0]).indices
            assert len(seen) in (0, rows) and (seen == 1).all()
            session.run(ops.reset)


def test_reads_see_whole_micro_batches(behaviour):
    table = tf.get_variable("table", [2, 64], initializer=tf.zeros_initializer(),
                            use_resource=True)
    ids = tf.placeholder(tf.int64, [None])
    grad = tf.IndexedSlices(
        tf.ones([tf.size(ids), 64]), ids, tf.constant([2, 64]))
    ops = tf1accum.build_from_gradients(
        [(grad, table)], k=1, reduction="sum",
        optimizer=tf.train.GradientDescentOptimizer(1.))
    with models.session() as session:
        def run():
            for _ in range(150):
                session.run(ops.accumulate, {ids: 700 * [1]})
        threads = [threading.Thread(target=run) for _ in range(2)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            seen = session.run(ops.accumulators[0])
            # Rows of one index may have been added up in between.
            assert seen.values[:, 0].sum() % 700 == 0
        for thread in threads:
            thread.join()
        assert session.run(ops.accumulators[0]).values[:, 0].sum() == 210000
