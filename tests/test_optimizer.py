"""The optimizer that applies at every k-th run of its train op."""

import threading

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import models
import tf1accum
from conftest import in_pairs


def make(optimizer=None, k=3, **kwargs):
    return tf1accum.AccumulatingOptimizer(
        optimizer or tf.train.GradientDescentOptimizer(0.1), k, **kwargs)


@pytest.fixture
def model(use_resource):
    return models.Regression(use_resource=use_resource)


@in_pairs
@pytest.mark.parametrize("optimizer", sorted(models.OPTIMIZERS))
def test_k_runs_equal_one_step_and_in_between_nothing_moves(
        behaviour, use_resource, optimizer):
    """Rows A3, A6, A7, C7 and C8.

    Nothing of the apply runs before the k-th, beta powers count applies; and
    reference variables do under either kind of control flow.
    """
    windows = models.Regression("windows", use_resource)
    wholes = models.Regression("wholes", use_resource)
    step = models.OPTIMIZERS[optimizer]().minimize(
        wholes.loss, var_list=wholes.variables)
    inner = models.OPTIMIZERS[optimizer]()
    opt = make(inner)
    train_op = opt.minimize(windows.loss, var_list=windows.variables)
    outer = [v for v in tf.global_variables() if not v.name.startswith(
        ("wholes", opt.ops.name))]
    with models.session() as session:
        for window in range(20):
            batches = windows.batches(3, seed=window)
            before = session.run(outer)
            for batch in batches[:2]:
                session.run(train_op, windows.feed(batch))
            for one, other in zip(before, session.run(outer)):
                np.testing.assert_array_equal(one, other)
            session.run(train_op, windows.feed(batches[2]))
            assert session.run(opt.ops.count) == 0
            session.run(step, wholes.feed(models.whole(batches)))
        for one, other in zip(session.run(windows.variables),
                              session.run(wholes.variables)):
            np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-5)


class Counting:
    """Counts what is applied, in the variable itself."""

    def compute_gradients(self, loss, var_list=None):
        return list(zip(tf.gradients(loss, var_list), var_list))

    def apply_gradients(self, grads_and_vars):
        return tf.group(*[v.assign_add(g) for g, v in grads_and_vars])


@in_pairs
def test_fresh_sessions_apply_at_exactly_the_kth_run(behaviour, use_resource):
    """Row A1: seventy sessions each, 280 in all, and seven runs in each."""
    v = tf.get_variable("v", [4], initializer=tf.zeros_initializer(),
                        use_resource=use_resource)
    step = tf.train.get_or_create_global_step()
    train_op = make(Counting(), k=3, reduction="sum").minimize(
        tf.reduce_sum(v), step, [v])
    for fresh in range(70):
        with models.session() as session:
            seen = []
            for _ in range(7):
                session.run(train_op)
                seen.append(list(session.run(v)) + [session.run(step)])
            assert seen == [5 * [0], 5 * [0], [3, 3, 3, 3, 1],
                            [3, 3, 3, 3, 1], [3, 3, 3, 3, 1],
                            [6, 6, 6, 6, 2], [6, 6, 6, 6, 2]], fresh


@pytest.mark.parametrize("sparse", [False, True])
def test_eight_threads_apply_hundreds_of_times_and_lose_no_gradient(
        behaviour, use_resource, sparse):
    # Of a size that takes its time: what overlaps has to be seen.
    size = 5000
    v = tf.get_variable("v", [size], tf.float64, tf.zeros_initializer(),
                        use_resource=use_resource)
    x = tf.placeholder(tf.float64, [])
    grad = tf.fill([size], x)
    if sparse:
        grad = tf.IndexedSlices(
            tf.fill([size], x), tf.range(size), tf.constant([size]))
    step = tf.train.get_or_create_global_step()
    opt = make(tf.train.GradientDescentOptimizer(
        tf.constant(1., tf.float64)), k=4, reduction="sum")
    train_op = opt.apply_gradients([(grad, v)], step)
    with models.session() as session:
        def run(thread):
            for _ in range(150):
                session.run(train_op, {x: float(thread)})
        threads = [threading.Thread(target=run, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert session.run([step, opt.ops.count]) == [300, 0]
        # 150 * (0 + 1 + ... + 7), a whole number and so exact.
        np.testing.assert_array_equal(session.run(v), np.full(size, -4200.))


def test_a_short_window_is_flushed_or_dropped(behaviour, model):
    step = tf.train.get_or_create_global_step()
    opt = make()
    train_op = opt.minimize(model.loss, step)
    batches = model.batches(2)
    with models.session() as session:
        for batch in batches:
            session.run(train_op, model.feed(batch))
        session.run(opt.flush)
        for got, start, grads in zip(
                session.run(model.variables), model.start,
                zip(*[model.gradients(model.start, b) for b in batches])):
            np.testing.assert_allclose(
                got, start - 0.1 * np.mean(grads, 0), rtol=1e-5, atol=1e-6)
        assert session.run([step, opt.ops.count]) == [1, 0]
        before = session.run(model.variables)
        session.run(train_op, model.feed(batches[0]))
        session.run(opt.reset)
        session.run(opt.flush)
        assert session.run([step, opt.ops.count]) == [1, 0]
        for one, other in zip(before, session.run(model.variables)):
            np.testing.assert_array_equal(one, other)


class OwnState:
    """Keeps its state in variables that it makes while applying."""

    def compute_gradients(self, loss, var_list=None):
        return list(zip(tf.gradients(loss, var_list), var_list))

    def apply_gradients(self, grads_and_vars):
        ops = []
        for grad, v in grads_and_vars:
            m = tf.get_variable(v.op.name + "/m", v.shape, trainable=False,
                                initializer=tf.zeros_initializer())
            n = tf.Variable(tf.zeros(v.shape), trainable=False, name="n")
            ops += [m.assign_add(grad), n.assign_add(grad),
                    v.assign_sub(0.1 * grad)]
        return tf.group(*ops)


def test_flush_moves_the_same_state_as_the_train_op(behaviour, model):
    average = tf.train.ExponentialMovingAverage(0.)
    opt = make(OwnState(), k=2, after_apply=lambda: average.apply([model.b]))
    train_op = opt.minimize(model.loss, var_list=model.variables)
    state = [v for v in tf.global_variables()
             if v.op.name in ("model/w/m", "n")]
    assert len(state) == 2
    assert [v.op.name for v in tf1accum.model_variables()] == [
        "model/w", "model/b", "model/b/ExponentialMovingAverage"]
    batches = model.batches(3)
    with tf.Session() as session:
        # All at once, TensorFlow may read a reference variable for its shadow
        # before it has a value.
        session.run(tf.variables_initializer(model.variables))
        session.run(tf.variables_initializer(tf.global_variables()[2:]))
        for batch in batches[:2]:
            session.run(train_op, model.feed(batch))
        first = np.mean([model.gradients(model.start, b)[0]
                         for b in batches[:2]], axis=0)
        values = session.run(model.variables)
        session.run(train_op, model.feed(batches[2]))
        session.run(opt.flush)
        second = model.gradients(values, batches[2])[0]
        for got in session.run(state):
            np.testing.assert_allclose(
                got, first + second, rtol=1e-4, atol=1e-6)
        np.testing.assert_array_equal(
            *session.run([model.b, average.average(model.b)]))


def test_it_looks_like_the_optimizer_that_it_wraps(model):
    """Row D7."""
    adam = tf.train.AdamOptimizer()
    opt = make(adam)
    assert isinstance(opt, tf.train.Optimizer)
    train_op = opt.minimize(model.loss)
    assert isinstance(train_op, tf.Operation)
    assert train_op.name == "accumulation/step"
    assert tf.get_collection(tf.GraphKeys.TRAIN_OP) == [train_op]
    assert opt.get_slot_names() == adam.get_slot_names() == ["m", "v"]
    assert opt.get_slot(model.w, "m") is adam.get_slot(model.w, "m")
    assert opt.variables() == adam.variables()
    with pytest.raises(RuntimeError) as error:
        make().flush
    assert "has ops once minimize or apply_gradients was called" in str(
        error.value)


@pytest.mark.parametrize("call", [
    lambda opt, model, step: opt.minimize(model.loss, step, model.variables),
    lambda opt, model, step: opt.minimize(
        loss=model.loss, global_step=step, var_list=model.variables),
    lambda opt, model, step: opt.minimize(
        model.loss, step, colocate_gradients_with_ops=True),
    lambda opt, model, step: opt.apply_gradients(
        opt.compute_gradients(model.loss, model.variables), step),
    lambda opt, model, step: opt.apply_gradients(
        grads_and_vars=opt.compute_gradients(
            loss=model.loss, var_list=model.variables), global_step=step,
        name="mine"),
])
@in_pairs
def test_its_methods_take_what_an_optimizers_take(behaviour, model, call):
    step = tf.train.get_or_create_global_step()
    opt = make()
    train_op = call(opt, model, step)
    batches = model.batches(3)
    with models.session() as session:
        for batch in batches:
            session.run(train_op, model.feed(batch))
        assert session.run(step) == 1
        for got, start, grads in zip(
                session.run(model.variables), model.start,
                zip(*[model.gradients(model.start, b) for b in batches])):
            np.testing.assert_allclose(
                got, start - 0.1 * np.mean(grads, 0), rtol=1e-5, atol=1e-6)


@in_pairs
def test_schedules_on_the_global_step_count_applies(behaviour, use_resource):
    """Row C1: after n windows, the rate is that of n steps."""
    results = []
    for scope in ("windows", "wholes"):
        with tf.Graph().as_default():
            model = models.Regression(scope, use_resource)
            step = tf.train.get_or_create_global_step()
            rate = tf.train.exponential_decay(0.2, step, 2, 0.5)
            adam = tf.train.AdamOptimizer(rate, epsilon=1.)
            windows = scope == "windows"
            train_op = (make(adam) if windows else adam).minimize(
                model.loss, step)
            with models.session() as session:
                for window in range(6):
                    batches = model.batches(3, seed=window)
                    for batch in batches if windows else [
                            models.whole(batches)]:
                        session.run(train_op, model.feed(batch))
                results.append(session.run(
                    model.variables + [rate, step] + adam.variables()))
    for one, other in zip(*results):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def loop(body):
    return tf.while_loop(lambda i: i < 7, lambda i: body(i), [0])


def test_it_trains_in_the_body_of_a_loop(behaviour):
    v = tf.get_variable("v", initializer=0., use_resource=True)
    step = tf.train.get_or_create_global_step()
    opt = make(tf.train.GradientDescentOptimizer(1.))

    def body(i):
        loss = (v.read_value() * 0. + v) * tf.cast(i + 1, tf.float32)
        with tf.control_dependencies([opt.minimize(loss, step, [v])]):
            return i + 1

    done = loop(body)
    with models.session() as session:
        session.run(done)
        # (1 + 2 + 3) / 3, (4 + 5 + 6) / 3, and 7 is left.
        np.testing.assert_allclose(session.run(v), -7.)
        assert session.run([step, opt.ops.count]) == [2, 1]
        session.run(opt.flush)
        np.testing.assert_allclose(session.run(v), -14.)


def test_it_trains_in_a_branch(behaviour):
    v = tf.get_variable("v", initializer=0., use_resource=True)
    flag = tf.placeholder(tf.bool, [])
    loss = v * 1.
    opt = make(tf.train.GradientDescentOptimizer(1.), k=2)
    grads = opt.compute_gradients(loss, [v])
    train_op = tf.cond(
        flag, lambda: tf.group(opt.apply_gradients(grads)), tf.no_op)
    with models.session() as session:
        for fed, count, value in ((True, 1, 0.), (False, 1, 0.),
                                  (True, 0, -1.), (False, 0, -1.)):
            session.run(train_op, {flag: fed})
            assert session.run([opt.ops.count, v]) == [count, value]


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("scale", [128., "dynamic"])
def test_loss_scaling_nests_in_either_order(behaviour, inside, scale):
    model = models.Regression(use_resource=True)
    opt = tf.train.GradientDescentOptimizer(0.1)
    scaled = tf.train.experimental.MixedPrecisionLossScaleOptimizer
    opt = make(scaled(opt, scale)) if inside else scaled(make(opt), scale)
    train_op = opt.minimize(model.loss, var_list=model.variables)
    batches = model.batches(3)
    with models.session() as session:
        for batch in batches:
            session.run(train_op, model.feed(batch))
        for got, start, grads in zip(
                session.run(model.variables), model.start,
                zip(*[model.gradients(model.start, b) for b in batches])):
            np.testing.assert_allclose(
                got, start - 0.1 * np.mean(grads, 0), rtol=1e-4, atol=1e-6)


def test_the_options_of_a_window_hold_at_every_kth_run(behaviour, model):
    """Weights, transforms, a sum, a k that grows, and skipped micro-batches."""
    k = tf.get_variable("k", [], tf.int32, tf.constant_initializer(2),
                        trainable=False, use_resource=True)
    weight = tf.placeholder(tf.float32, [])
    opt = make(k=k, weight=weight, nonfinite="skip", transform=lambda pairs: [
        (2. * g, v) for g, v in pairs])
    train_op = opt.minimize(model.loss, var_list=model.variables)
    batches = model.batches(4)
    with models.session() as session:
        def run(batch, w):
            session.run(train_op, {**model.feed(batch), weight: w})

        run(batches[0], 1.)
        run((batches[1][0] * np.nan, batches[1][1]), 5.)
        assert session.run([opt.ops.count, opt.ops.skipped]) == [1, 1]
        run(batches[1], 3.)
        for got, start, grads in zip(
                session.run(model.variables), model.start,
                zip(*[model.gradients(model.start, b) for b in batches[:2]])):
            np.testing.assert_allclose(got, start - 0.2 * np.average(
                grads, axis=0, weights=[1., 3.]), rtol=1e-5, atol=1e-6)
        values = session.run(model.variables)
        session.run(k.assign(1))
        run(batches[2], 1.)
        for got, start, grad in zip(
                session.run(model.variables), values,
                model.gradients(values, batches[2])):
            np.testing.assert_allclose(
                got, start - 0.2 * grad, rtol=1e-5, atol=1e-6)


def test_it_works_after_a_metagraph_was_imported(
        behaviour, model, tmp_path, export):
    """Row A12: nothing dead in TRAIN_OP, and everything serialises."""
    step = tf.train.get_or_create_global_step()
    make(tf.train.AdamOptimizer()).minimize(model.loss, step)
    names = [t.name for t in (model.x, model.y)]
    export(tmp_path / "graph.meta")
    with tf.Graph().as_default() as graph:
        tf.train.import_meta_graph(str(tmp_path / "graph.meta"))
        train_op, = tf.get_collection(tf.GraphKeys.TRAIN_OP)
        counter = tf.train.get_global_step()
        with models.session() as session:
            for i in range(1, 8):
                session.run(train_op, dict(zip(
                    [graph.get_tensor_by_name(name) for name in names],
                    model.batches(1, seed=i)[0])))
                assert session.run(counter) == i // 3


def test_an_open_window_comes_back_from_a_checkpoint(model, tmp_path):
    """Row C9: what is counted and what is accumulated are saved together."""
    opt = make(tf.train.AdamOptimizer())
    train_op = opt.minimize(model.loss)
    saver = tf.train.Saver()
    batches = model.batches(6)
    results = []
    for stop_after in (None, 4):
        session = models.session()
        for i, batch in enumerate(batches):
            if i == stop_after:
                saver.save(session, str(tmp_path / "open"))
                session.close()
                session = tf.Session()
                saver.restore(session, str(tmp_path / "open"))
            session.run(train_op, model.feed(batch))
        results.append(session.run(model.variables + opt.variables()))
        session.close()
    for one, other in zip(*results):
        np.testing.assert_array_equal(one, other)


def test_each_run_takes_one_element_of_a_dataset(behaviour):
    """Row F1: also when the loss is fetched in the same run."""
    v = tf.get_variable("v", initializer=0.)
    element = tf.cast(tf.data.make_one_shot_iterator(
        tf.data.Dataset.range(7)).get_next(), tf.float32)
    loss = v * element + element
    opt = make(tf.train.GradientDescentOptimizer(1.), k=3)
    train_op = opt.minimize(loss, var_list=[v])
    tf.get_default_graph().finalize()
    with tf.Session() as session:
        session.run(tf.get_default_graph().get_operation_by_name(
            "accumulation/initializer"))
        session.run(v.initializer)
        seen = []
        with pytest.raises(tf.errors.OutOfRangeError):
            while True:
                before = session.run(v)
                _, value = session.run([train_op, loss])
                seen.append(value / (1. + before) if before != -1. else None)
        # Windows of (0, 1, 2) and (3, 4, 5); 6 is left, and what ended the
        # loop is not counted.
        assert seen[:3] == [0., 1., 2.] and len(seen) == 7
        assert session.run([v, opt.ops.count]) == [-5., 1]


def test_each_micro_batch_has_a_dropout_mask_of_its_own(behaviour):
    v = tf.get_variable("v", initializer=tf.ones([1000]))
    kept = tf.nn.dropout(tf.ones([1000]), keep_prob=0.5) / 2.
    opt = make(tf.train.GradientDescentOptimizer(1.), k=3, reduction="sum")
    train_op = opt.minimize(tf.reduce_sum(v * kept), var_list=[v])
    with models.session() as session:
        for _ in range(3):
            session.run(train_op)
        counts = np.bincount((1. - session.run(v)).astype(int), minlength=4)
        # Binomial: 1, 3, 3 and 1 eighths of a thousand.
        assert (np.abs(counts - [125, 375, 375, 125]) < 80).all(), counts


def rnn(x, w):
    """A dynamic loop over time, as recurrent models have."""
    return tf.while_loop(
        lambda i, h: i < tf.shape(x)[0],
        lambda i, h: (i + 1, tf.tanh(h * w + x[i])), [0, tf.zeros([])])[1]


def branch(x, w):
    return tf.cond(tf.reduce_sum(x) > 0., lambda: tf.reduce_sum(x) * w,
                   lambda: w * w)


@pytest.mark.parametrize("network", [rnn, branch])
def test_models_with_loops_and_branches_obey_the_law(behaviour, network):
    x = tf.placeholder(tf.float32, [3])
    parts = tf.placeholder(tf.float32, [2, 3])
    w = tf.get_variable("w", initializer=0.5, use_resource=True)
    twin = tf.get_variable("twin", initializer=0.5, use_resource=True)
    train_op = make(tf.train.AdamOptimizer(0.1, epsilon=1.), k=2).minimize(
        network(x, w), var_list=[w])
    step = tf.train.AdamOptimizer(0.1, epsilon=1.).minimize(
        (network(parts[0], twin) + network(parts[1], twin)) / 2.,
        var_list=[twin])
    with models.session() as session:
        for seed in range(5):
            batch = np.random.RandomState(seed).randn(2, 3)
            for part in batch:
                session.run(train_op, {x: part})
            session.run(step, {parts: batch})
        np.testing.assert_allclose(*session.run([w, twin]), rtol=1e-5)


def test_wrong_arguments_are_refused_before_any_op_is_added(model):
    def refuses(error_class, words, call):
        models.refuses(
            error_class, ["tf1accum.AccumulatingOptimizer: " + words], call)

    refuses(TypeError, "optimizer must be an object with compute_gradients",
            lambda: make(object()))
    refuses(ValueError, "k, the micro-batches in a window, must be",
            lambda: make(k=0).minimize(model.loss))
    refuses(TypeError, "loss must be a tensor", lambda: make().minimize(3.))
    refuses(TypeError, "var_list must be a list",
            lambda: make().minimize(model.loss, var_list=5))
    refuses(TypeError, "global_step must be a variable",
            lambda: make().minimize(model.loss, 5))
    refuses(TypeError, "grads_and_vars must be a list",
            lambda: make().apply_gradients(None))
    refuses(ValueError, "at least one variable must have a gradient",
            lambda: make().apply_gradients([(None, model.w)]))


def test_a_flush_from_another_thread_loses_no_gradient(behaviour):
    v = tf.get_variable("v", [50], initializer=tf.zeros_initializer(),
                        use_resource=True)
    opt = make(tf.train.GradientDescentOptimizer(1.), k=7, reduction="sum")
    train_op = opt.apply_gradients([(tf.ones([50]), v)])
    with models.session() as session:
        def run():
            for _ in range(300):
                session.run(train_op)

        threads = [threading.Thread(target=run) for _ in range(2)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            session.run(opt.flush)
        for thread in threads:
            thread.join()
        session.run(opt.flush)
        np.testing.assert_array_equal(session.run(v), np.full(50, -600.))


def test_update_ops_run_with_a_train_op_in_a_branch(behaviour):
    v = tf.get_variable("v", initializer=0., use_resource=True)
    moving = tf.get_variable("moving", initializer=0., trainable=False,
                             use_resource=True)
    x = tf.placeholder(tf.float32, [None])
    mean = tf.reduce_mean(x)
    tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, moving.assign_add(mean).op)
    opt = make(tf.train.GradientDescentOptimizer(1.), k=2)
    grads = opt.compute_gradients(v * mean, [v])
    train_op = tf.cond(tf.placeholder_with_default(True, []),
                       lambda: tf.group(opt.apply_gradients(grads)), tf.no_op)
    with models.session() as session:
        for _ in range(2):
            session.run(train_op, {x: [1., 3.]})
        assert session.run([v, moving]) == [-2., 4.]


def test_what_towers_computed_goes_with_their_mean(behaviour):
    """Row B14: the update ops of each; no loss, of which there are several."""
    v = tf.get_variable("v", initializer=0.)
    x = tf.placeholder(tf.float32, [])
    moving, towers = [], []
    opt = make(tf.train.GradientDescentOptimizer(1.), k=2)
    for i in range(2):
        value = x * (i + 1.)
        moving.append(tf.get_variable("moving%d" % i, initializer=0.,
                                      trainable=False))
        tf.add_to_collection(
            tf.GraphKeys.UPDATE_OPS, moving[i].assign_add(value))
        towers.append(opt.compute_gradients(v * value, [v]))
    train_op = opt.apply_gradients(tf1accum.average_tower_gradients(towers))
    assert opt.ops.average_loss is None
    with models.session() as session:
        for _ in range(2):
            session.run(train_op, {x: 1.})
        assert session.run([v] + moving) == [-1.5, 2., 4.]


def test_a_loss_of_another_graph_is_forgotten():
    opt = make(k=2)
    with tf.Graph().as_default():
        other = models.Regression()
        opt.compute_gradients(other.loss, other.variables)
    v = tf.get_variable("v", initializer=1.)
    train_op = opt.apply_gradients([(tf.gradients(v * v, v)[0], v)])
    assert opt.ops.average_loss is None
    assert isinstance(train_op, tf.Operation)


@pytest.mark.parametrize("optimizer", sorted(models.OPTIMIZERS))
def test_k_runs_of_lookups_equal_one_step_and_in_between_nothing_moves(
        behaviour, optimizer):
    twins = {}
    for scope in ("windows", "wholes"):
        ids = tf.placeholder(tf.int32, [None])
        table = tf.get_variable(
            scope, [12, 3], initializer=tf.constant_initializer(1.5),
            use_resource=True)
        loss = tf.reduce_mean(tf.reduce_sum(tf.square(
            tf.nn.embedding_lookup(table, ids) - 1.), 1))
        twins[scope] = ids, table, loss
    ids, table, loss = twins["windows"]
    inner = models.OPTIMIZERS[optimizer]()
    train_op = make(inner).minimize(loss, var_list=[table])
    whole_ids, whole_table, whole_loss = twins["wholes"]
    step = models.OPTIMIZERS[optimizer]().minimize(
        whole_loss, var_list=[whole_table])
    with models.session() as session:
        for window in range(20):
            batches = np.random.RandomState(window).randint(0, 8, [3, 5])
            before = session.run([table] + inner.variables())
            for batch in batches[:2]:
                session.run(train_op, {ids: batch})
            for one, other in zip(
                    before, session.run([table] + inner.variables())):
                np.testing.assert_array_equal(one, other)
            session.run(train_op, {ids: batches[2]})
            session.run(step, {whole_ids: batches.reshape(-1)})
        np.testing.assert_allclose(
            *session.run([table, whole_table]), rtol=2e-5, atol=2e-6)


class MovingAverages(tf.train.Optimizer):
    """Keeps moving averages of the weights, as tf.contrib's wrapper does."""

    def __init__(self, optimizer):
        super().__init__(False, "MovingAverages")
        self.average = tf.train.ExponentialMovingAverage(0.5)
        self._optimizer = optimizer

    def compute_gradients(self, *args, **kwargs):
        return self._optimizer.compute_gradients(*args, **kwargs)

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        op = self._optimizer.apply_gradients(grads_and_vars, global_step, name)
        with tf.control_dependencies([op]):
            return self.average.apply([v for _, v in grads_and_vars])


@pytest.mark.parametrize("inside", [True, False])
def test_a_wrapper_that_keeps_moving_averages_nests_in_either_order(
        behaviour, inside):
    """Row C10: inside, they move with each apply; outside, with each run."""
    model = models.Regression(use_resource=True)
    sgd = tf.train.GradientDescentOptimizer(0.1)
    averages = MovingAverages(sgd if inside else make(sgd))
    opt = make(averages) if inside else averages
    step = tf.train.get_or_create_global_step()
    train_op = opt.minimize(model.loss, step, model.variables)
    shadow = averages.average.average(model.w)
    values, expected = list(model.start), model.start[0]
    with models.session() as session:
        for window in range(3):
            batches = model.batches(3, seed=window)
            for i, batch in enumerate(batches):
                session.run(train_op, model.feed(batch))
                if i == 2:
                    values = [v - 0.1 * np.mean(grads, axis=0)
                              for v, grads in zip(values, zip(*[
                                  model.gradients(values, b)
                                  for b in batches]))]
                if i == 2 or not inside:
                    expected = 0.5 * expected + 0.5 * values[0]
                np.testing.assert_allclose(
                    session.run(shadow), expected, rtol=1e-4, atol=1e-6)
            np.testing.assert_allclose(
                session.run(model.w), values[0], rtol=1e-4, atol=1e-6)
        assert session.run(step) == 3
