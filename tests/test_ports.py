"""Stand-ins give the numbers of what they stand in for."""

import threading

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import models
import tf1accum
from conftest import in_pairs
from tf1accum import ports

ROWS = 6


class Sgd:
    """w -= rate g."""

    make = staticmethod(tf.train.GradientDescentOptimizer)

    def step(self, w, g, rate):
        return w - rate * g


class Momentum:
    """m = 0.9 m + g; w -= rate m."""

    m = 0.

    @staticmethod
    def make(rate):
        return tf.train.MomentumOptimizer(rate, 0.9)

    def step(self, w, g, rate):
        self.m = 0.9 * self.m + g
        return w - rate * self.m


class Adagrad:
    """a += g^2; w -= rate g / sqrt(a), and a starts at 0.1."""

    a = 0.1
    make = staticmethod(tf.train.AdagradOptimizer)

    def step(self, w, g, rate):
        self.a = self.a + g ** 2
        return w - rate * g / np.sqrt(self.a)


class Adam:
    """The paper's, with an epsilon that shows the scale of g (row B2)."""

    t, m, v = 0, 0., 0.

    @staticmethod
    def make(rate):
        return tf.train.AdamOptimizer(rate, epsilon=1.)

    def step(self, w, g, rate):
        self.t += 1
        self.m = 0.9 * self.m + 0.1 * g
        self.v = 0.999 * self.v + 0.001 * g ** 2
        rate = rate * np.sqrt(1. - 0.999 ** self.t) / (1. - 0.9 ** self.t)
        return w - rate * self.m / (np.sqrt(self.v) + 1.)


RULES = [Sgd, Momentum, Adagrad, Adam]


class Lookup:
    """loss = mean over ids of sum((table[id] - 1)^2) / 2."""

    def __init__(self, use_resource):
        self.start = [np.linspace(0., 3., ROWS * 2).reshape(
            [ROWS, 2]).astype(np.float32)]
        self.ids = tf.placeholder(tf.int32, [None])
        with tf.variable_scope("lookup", use_resource=use_resource):
            self.variables = [tf.get_variable(
                "table", initializer=tf.constant(self.start[0]))]
        self.loss = tf.reduce_mean(tf.reduce_sum(tf.square(
            tf.nn.embedding_lookup(self.variables[0], self.ids) - 1.), 1)) / 2.

    def feed(self, batch):
        return {self.ids: batch}

    def batches(self, number):
        # Of few rows each, so that a window leaves out what another held.
        random = np.random.RandomState(5)
        return [random.choice(random.randint(0, ROWS, 2), 4)
                for _ in range(number)]

    def gradients(self, values, batch):
        grad = np.zeros_like(values[0])
        np.add.at(grad, batch, (values[0][batch] - 1.) / len(batch))
        return [grad]

    def numpy_loss(self, values, batch):
        return np.mean(np.sum(
            np.square(values[0][batch] - 1.), axis=1)) / 2.


MODELS = {
    "dense": lambda use_resource: models.Regression(use_resource=use_resource),
    "sparse": Lookup,
}


def published(model, rule, batches, k, rate):
    """What tensorpack's class does when it reads its counter in time.

    Args:
      rate: function of the step.

    Yields:
      The step and the list of values after each run.
    """
    values = [value.astype(np.float64) for value in model.start]
    rules = [rule() for _ in values]
    totals, step = [0.] * len(values), 0
    for run, batch in enumerate(batches, 1):
        grads = model.gradients(values, batch)
        totals = [total + grad for total, grad in zip(totals, grads)]
        if run % k == 0:
            values = [one.step(value, total, rate(step))
                      for one, value, total in zip(rules, values, totals)]
            totals = [0.] * len(values)
        step += 1
        yield step, values


@pytest.fixture
def model(use_resource):
    return models.Regression(use_resource=use_resource)


def assert_close(ones, others):
    for one, other in zip(ones, others):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("kind", sorted(MODELS))
@pytest.mark.parametrize("rule", RULES)
@in_pairs
def test_tensorpacks_gives_the_numbers_of_the_published_class(
        behaviour, use_resource, rule, kind):
    """Rows A1, A3 and B1: the sum, at each third run, each run counted.

    Sparse gradients are tables there: momentum moves rows that a window does
    not hold.
    """
    model = MODELS[kind](use_resource)
    step = tf.train.get_or_create_global_step()
    opt = ports.AccumGradOptimizer(rule.make(0.05), niter=3)
    train_op = opt.minimize(model.loss, step)
    batches = model.batches(20)
    expected = published(model, rule, batches, 3, lambda step: 0.05)
    with models.session() as session:
        for batch, (number, values) in zip(batches, expected):
            session.run(train_op, model.feed(batch))
            assert session.run(step) == number
            assert_close(session.run(model.variables), values)


@pytest.mark.parametrize("call", [
    lambda opt, model, step: opt.minimize(model.loss, step, model.variables),
    lambda opt, model, step: opt.minimize(
        loss=model.loss, global_step=step, var_list=model.variables,
        name="mine"),
    lambda opt, model, step: opt.minimize(
        model.loss, step, aggregation_method=tf.AggregationMethod.ADD_N),
    lambda opt, model, step: opt.apply_gradients(
        opt.compute_gradients(model.loss, model.variables), step),
    lambda opt, model, step: opt.apply_gradients(
        grads_and_vars=opt.compute_gradients(
            loss=model.loss, var_list=model.variables), global_step=step,
        name="mine"),
])
@in_pairs
def test_tensorpacks_methods_take_what_an_optimizers_take(
        behaviour, model, call):
    step = tf.train.get_or_create_global_step()
    adam = Adam.make(0.05)
    opt = ports.AccumGradOptimizer(opt=adam, niter="2")
    assert isinstance(opt, tf.train.Optimizer)
    train_op = call(opt, model, step)
    assert isinstance(train_op, tf.Operation)
    assert tf.get_collection(tf.GraphKeys.TRAIN_OP) == [train_op]
    assert opt.ops.step is train_op
    assert tf.get_collection(
        "tf1accum/{}/step".format(opt.ops.name)) == [train_op]
    assert opt.get_slot_names() == adam.get_slot_names() == ["m", "v"]
    assert opt.get_slot(model.w, "m") is adam.get_slot(model.w, "m")
    assert opt.variables() == adam.variables()
    batches = model.batches(5)
    with models.session() as session:
        for batch in batches:
            session.run(train_op, model.feed(batch))
        (number, values), = list(published(
            model, Adam, batches, 2, lambda step: 0.05))[-1:]
        assert session.run(step) == number == 5
        assert_close(session.run(model.variables), values)


@in_pairs
def test_tensorpacks_steps_when_all_is_done_and_reads_its_rate_before(
        behaviour, use_resource):
    """Rows A1 and C6: sixty sessions each, 240 in all, five runs in each."""
    v = tf.get_variable("v", [3], initializer=tf.zeros_initializer(),
                        use_resource=use_resource)
    with tf.variable_scope("", use_resource=use_resource):
        step = tf.train.get_or_create_global_step()
    # A rate that says at which step it was read.
    rate = tf.cast(step, tf.float32)
    train_op = ports.AccumGradOptimizer(
        tf.train.GradientDescentOptimizer(-rate), 2).minimize(
            tf.reduce_sum(v), step, [v])
    for fresh in range(60):
        with models.session() as session:
            seen = []
            for _ in range(5):
                session.run(train_op)
                seen.append([session.run(v)[0], session.run(step)])
            # Two, the sum, times the step: 1, and then 3.
            assert seen == [[0, 1], [2, 2], [2, 3], [8, 4], [8, 5]], fresh


def test_tensorpacks_follows_a_schedule_on_runs(behaviour, model):
    """Row C1, as it is there."""
    step = tf.train.get_or_create_global_step()
    rate = tf.train.exponential_decay(0.05, step, 2, 0.7, staircase=True)
    train_op = ports.AccumGradOptimizer(
        tf.train.MomentumOptimizer(rate, 0.9), 3).minimize(model.loss, step)
    batches = model.batches(12)
    with models.session() as session:
        for batch in batches:
            session.run(train_op, model.feed(batch))
        (_, values), = list(published(
            model, Momentum, batches, 3,
            lambda step: 0.05 * 0.7 ** (step // 2)))[-1:]
        assert_close(session.run(model.variables), values)


def test_tensorpacks_counts_each_run_of_eight_threads(
        behaviour, use_resource):
    v = tf.get_variable("v", initializer=0., use_resource=use_resource)
    with tf.variable_scope("", use_resource=use_resource):
        step = tf.train.get_or_create_global_step()
    train_op = ports.AccumGradOptimizer(
        tf.train.GradientDescentOptimizer(-1.), 4).minimize(v * 1., step, [v])
    with models.session() as session:
        threads = [threading.Thread(target=lambda: [
            session.run(train_op) for _ in range(50)]) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert session.run([step, v]) == [400, 400.]


def test_tensorpacks_without_a_step_counts_nothing(behaviour, model):
    opt = ports.AccumGradOptimizer(Sgd.make(0.1), 2)
    train_op = opt.minimize(model.loss)
    assert train_op.name == "accumulation/step"
    assert opt.ops.step is train_op
    assert not tf.get_collection(tf.GraphKeys.GLOBAL_STEP)


@in_pairs
@pytest.mark.parametrize("counted", [True, False])
def test_tensorpacks_runs_what_the_script_asks_for_and_no_more(
        behaviour, use_resource, counted):
    with tf.variable_scope("", use_resource=use_resource):
        v, asked, other = [tf.get_variable(name, initializer=0.)
                           for name in ("v", "asked", "other")]
    loss = v * 1.
    updates = [variable.assign_add(tf.stop_gradient(loss * 0. + 1.))
               for variable in (asked, other)]
    for update in updates:
        tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, update)
    step = tf.train.get_or_create_global_step()
    with tf.control_dependencies([updates[0]]):
        train_op = ports.AccumGradOptimizer(Sgd.make(1.), 2).minimize(
            loss, step if counted else None, [v])
    assert tf.get_collection(tf.GraphKeys.TRAIN_OP) == [train_op]
    with models.session() as session:
        for _ in range(3):
            session.run(train_op)
        assert session.run([v, asked, other]) == [-2., 3., 0.]
        assert session.run(step) == (3 if counted else 0)


def test_tensorpacks_adds_one_box_whatever_scope_it_stands_in(
        behaviour, model):
    step = tf.train.get_or_create_global_step()
    variables = set(tf.global_variables())
    # Reads of variables, that are kept for later.
    before = {op.name for op in tf.get_default_graph().get_operations()}
    with tf.variable_scope("outer", reuse=tf.AUTO_REUSE), tf.device("/cpu:0"):
        train_op = ports.AccumGradOptimizer(Sgd.make(0.1), 2).minimize(
            model.loss, step)
    assert train_op.name == "accumulation/step_and_count"
    added = {op.name for op in tf.get_default_graph().get_operations()
             } - before
    assert {name for name in added if not name.startswith((
        "accumulation/", "model/"))} == set()
    assert all(v.name.startswith("accumulation/")
               for v in set(tf.global_variables()) - variables)
    assert tf.trainable_variables() == model.variables


def test_tensorpacks_trains_in_a_branch_and_in_a_loop(behaviour):
    v = tf.get_variable("v", initializer=0., use_resource=True)
    with tf.variable_scope("", use_resource=True):
        step = tf.train.get_or_create_global_step()
    flag = tf.placeholder(tf.bool, [])
    opt = ports.AccumGradOptimizer(Sgd.make(1.), 2)
    grads = opt.compute_gradients(v * 1., [v])
    train_op = tf.cond(flag, lambda: tf.group(
        opt.apply_gradients(grads, step)), tf.no_op)
    other = ports.AccumGradOptimizer(Sgd.make(1.), 2)

    def body(i):
        with tf.control_dependencies([other.minimize(v * 1., step, [v])]):
            return i + 1

    loop = tf.while_loop(lambda i: i < 5, body, [0])
    with models.session() as session:
        for fed, number, value in ((True, 1, 0.), (False, 1, 0.),
                                   (True, 2, -2.), (False, 2, -2.)):
            session.run(train_op, {flag: fed})
            assert session.run([step, v]) == [number, value]
        session.run(loop)
        assert session.run([step, v]) == [7, -6.]


@pytest.mark.parametrize("niter, kind, words", [
    (0, ValueError, "positive integer; got 0. Use niter=1"),
    (-2, ValueError, "positive integer; got -2."),
    (None, TypeError, "positive integer; got None."),
    ("many", TypeError, "positive integer; got 'many'."),
])
def test_tensorpacks_refuses_a_window_of_less_than_one(niter, kind, words):
    """Row A13."""
    with pytest.raises(kind) as error:
        ports.AccumGradOptimizer(Sgd.make(1.), niter)
    assert "tf1accum.ports.AccumGradOptimizer: niter" in str(error.value)
    assert words in str(error.value)


def test_tensorpacks_refuses_what_is_no_optimizer_or_no_step(model):
    with pytest.raises(TypeError) as error:
        ports.AccumGradOptimizer(tf.train.AdamOptimizer, 2)
    assert "AccumGradOptimizer: optimizer must be an object" in str(
        error.value)
    before = tf.get_default_graph().as_graph_def()
    with pytest.raises(TypeError) as error:
        ports.AccumGradOptimizer(Sgd.make(1.), 2).minimize(model.loss, 3)
    assert ("tf1accum.ports.AccumGradOptimizer: global_step must be a "
            "variable or None; got 3.") in str(error.value)
    assert tf.get_default_graph().as_graph_def() == before


# The GPT-2 scripts.

ORDERS = ["reset compute apply", "compute apply reset", "apply reset compute",
          "apply compute reset"]


def gpt2_ops(opt, loss, order="reset compute apply"):
    """(reset, compute, apply), asked for in that order, as scripts do."""
    calls = {"reset": opt.reset, "apply": opt.apply_gradients,
             "compute": lambda: opt.compute_gradients(loss)}
    made = {name: calls[name]() for name in order.split()}
    return made["reset"], made["compute"], made["apply"]


@pytest.mark.parametrize("kind", sorted(MODELS))
@pytest.mark.parametrize("rule", RULES)
@in_pairs
def test_gpt2s_gives_the_sum_and_the_mean_loss(
        behaviour, use_resource, rule, kind):
    """Rows B1, B2 and B10, by the loop that the scripts have."""
    model = MODELS[kind](use_resource)
    opt = ports.AccumulatingOptimizer(
        opt=rule.make(0.05), var_list=model.variables)
    opt_reset = opt.reset()
    opt_compute = opt.compute_gradients(model.loss)
    opt_apply = opt.apply_gradients()
    summary = tf.summary.scalar("loss", opt_apply)
    values = [value.astype(np.float64) for value in model.start]
    rules = [rule() for _ in values]
    batches = model.batches(18)
    with models.session() as session:
        for start in range(0, 18, 3):
            window = batches[start:start + 3]
            losses = [model.numpy_loss(values, batch) for batch in window]
            grads = [model.gradients(values, batch) for batch in window]
            values = [one.step(value, np.sum(terms, axis=0), 0.05)
                      for one, value, terms in zip(rules, values, zip(*grads))]
            session.run(opt_reset)
            for batch in window:
                session.run(opt_compute, model.feed(batch))
            v_loss, v_summary = session.run((opt_apply, summary))
            np.testing.assert_allclose(v_loss, np.mean(losses), rtol=1e-5)
            assert tf.Summary.FromString(
                v_summary).value[0].simple_value == v_loss
            assert_close(session.run(model.variables), values)


@pytest.mark.parametrize("order", ORDERS)
@in_pairs
def test_gpt2s_ops_are_built_once_in_any_order(behaviour, model, order):
    opt = ports.AccumulatingOptimizer(Momentum.make(0.1), model.variables)
    ops = gpt2_ops(opt, model.loss, order)
    assert isinstance(ops[0], tf.Operation)
    assert isinstance(ops[1], tf.Operation)
    assert isinstance(ops[2], tf.Tensor) and ops[2].shape.rank == 0
    graph = tf.get_default_graph()
    graph.finalize()
    for one, other in zip(ops, gpt2_ops(opt, model.loss)):
        assert one is other
    reset, compute, apply = ops
    first, second = model.batches(2)
    with tf.Session() as session:
        # The graph is final; initializers of its variables are in it.
        session.run([v.initializer for v in tf.global_variables()])
        session.run(compute, model.feed(first))
        session.run(reset)
        session.run(compute, model.feed(second))
        np.testing.assert_allclose(session.run(apply), model.numpy_loss(
            model.start, second), rtol=1e-5)
        assert_close(session.run(model.variables), [
            start - 0.1 * grad for start, grad in zip(
                model.start, model.gradients(model.start, second))])


def test_gpt2s_with_nothing_accumulated_moves_nothing_and_is_no_nan(
        behaviour, model):
    """Row B9."""
    opt = ports.AccumulatingOptimizer(Adam.make(0.1), model.variables)
    reset, compute, apply = gpt2_ops(opt, model.loss)
    batch = model.batches(1)[0]

    def check_that_apply_moves_nothing(session):
        before = session.run(tf.global_variables())
        assert session.run(apply) == 0.
        for one, other in zip(before, session.run(tf.global_variables())):
            np.testing.assert_array_equal(one, other)

    with models.session() as session:
        check_that_apply_moves_nothing(session)
        session.run(compute, model.feed(batch))
        session.run(apply)
        session.run(reset)
        check_that_apply_moves_nothing(session)


def test_gpt2s_reset_forgets_a_nan(behaviour, model):
    opt = ports.AccumulatingOptimizer(Sgd.make(0.1), model.variables)
    reset, compute, apply = gpt2_ops(opt, model.loss)
    x, y = model.batches(1)[0]
    with models.session() as session:
        session.run(compute, model.feed((x * np.nan, y)))
        session.run(reset)
        session.run(compute, model.feed((x, y)))
        np.testing.assert_allclose(
            session.run(apply), model.numpy_loss(model.start, (x, y)),
            rtol=1e-5)


@in_pairs
def test_gpt2s_loss_is_read_after_the_apply_has_run(behaviour, use_resource):
    """Row A5: sixty sessions each, 240 in all."""
    v = tf.get_variable("v", [3], initializer=tf.zeros_initializer(),
                        use_resource=use_resource)
    opt = ports.AccumulatingOptimizer(Sgd.make(-1.), [v])
    reset, compute, apply = gpt2_ops(opt, tf.reduce_sum(v) + 1.)
    with tf.control_dependencies([apply]):
        after = v.read_value()
    for fresh in range(60):
        with models.session() as session:
            for _ in range(3):
                session.run(compute)
            loss, values = session.run([apply, after])
            assert (loss, list(values)) == (1., [3., 3., 3.]), fresh
            session.run(reset)
            session.run(compute)
            assert session.run(apply) == 10.


def test_gpt2s_adds_one_box_that_no_saver_of_the_model_saves(
        behaviour, model):
    before = {op.name for op in tf.get_default_graph().get_operations()}
    with tf.variable_scope("outer", reuse=tf.AUTO_REUSE):
        opt = ports.AccumulatingOptimizer(Adam.make(0.1), model.variables)
        gpt2_ops(opt, model.loss)
    added = {op.name for op in tf.get_default_graph().get_operations()
             } - before
    assert {name for name in added if not name.startswith((
        "accumulation/", "model/", "beta"))} == set()
    assert tf.trainable_variables() == model.variables
    assert tf1accum.model_variables() == model.variables
    assert opt.var_list == model.variables
    others = ports.AccumulatingOptimizer(Adam.make(0.1), model.variables)
    assert others.reset().name == "accumulation_1/reset"


@in_pairs
def test_gpt2s_runs_what_the_script_asks_for(behaviour, use_resource):
    with tf.variable_scope("", use_resource=use_resource):
        v, asked = [tf.get_variable(name, initializer=0.)
                    for name in ("v", "asked")]
    opt = ports.AccumulatingOptimizer(Sgd.make(1.), [v])
    loss = v * 1.
    with tf.control_dependencies([asked.assign_add(1.)]):
        compute = opt.compute_gradients(loss)
        reset, _, apply = gpt2_ops(opt, loss)
    with models.session() as session:
        session.run(reset)
        for _ in range(3):
            session.run(compute)
        session.run(apply)
        assert session.run([v, asked]) == [-3., 3.]


def test_gpt2s_refuses_an_update_op_of_a_branch(use_resource):
    """Row A9: what waits for it would be skipped with it."""
    v, asked = [tf.get_variable(name, initializer=0.,
                                use_resource=use_resource)
                for name in ("v", "asked")]
    inside = []

    def branch():
        inside.append(asked.assign_add(1.))
        return tf.identity(inside[0])

    tf.cond(tf.placeholder(tf.bool, []), branch, lambda: tf.constant(0.))
    opt, loss = ports.AccumulatingOptimizer(Sgd.make(1.), [v]), v * 1.
    with tf.control_dependencies(inside):
        with pytest.raises(ValueError) as error:
            opt.compute_gradients(loss)
    assert "tf1accum.ports.AccumulatingOptimizer: an update op must be" in (
        str(error.value))


def test_gpt2s_refuses_another_loss_and_what_has_no_gradient(model):
    opt = ports.AccumulatingOptimizer(Sgd.make(0.1), model.variables)
    opt.compute_gradients(model.loss)
    other = tf.identity(model.loss, name="other")
    before = tf.get_default_graph().as_graph_def()
    for loss, words in (
            (other, "must get the same loss each time; got other:0 after "
             + model.loss.name),
            (3., "loss must be a tensor; got 3.0."),
            (tf.global_variables, "loss must be a tensor")):
        with pytest.raises((TypeError, ValueError)) as error:
            opt.compute_gradients(loss)
        assert "tf1accum.ports.AccumulatingOptimizer: " in str(error.value)
        assert words in str(error.value)
    assert tf.get_default_graph().as_graph_def() == before
    apart = tf.get_variable("apart", initializer=0.)
    with pytest.raises(ValueError) as error:
        ports.AccumulatingOptimizer(Sgd.make(0.1), [
            model.w, apart]).compute_gradients(model.loss)
    assert "the loss has none for apart:0. Leave them out" in str(error.value)


@pytest.mark.parametrize("opt, var_list, words", [
    (lambda: tf.train.AdamOptimizer, lambda model: [model.w],
     "optimizer must be an object"),
    (lambda: Sgd.make(1.), lambda model: None, "var_list must be a list"),
    (lambda: Sgd.make(1.), lambda model: [], "var_list holds no variable"),
    (lambda: Sgd.make(1.), lambda model: [model.w, model.w],
     "var_list must hold each variable once"),
])
def test_gpt2s_refuses_what_it_cannot_train(model, opt, var_list, words):
    opt, var_list = opt(), var_list(model)
    before = tf.get_default_graph().as_graph_def()
    with pytest.raises((TypeError, ValueError)) as error:
        ports.AccumulatingOptimizer(opt, var_list)
    assert "tf1accum.ports.AccumulatingOptimizer: " + words in str(error.value)
    assert tf.get_default_graph().as_graph_def() == before


# Horovod's habit.

@pytest.mark.parametrize("passes", [1, 3])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@in_pairs
def test_horovods_passes_are_one_reduction_of_each_gradient_a_window(
        behaviour, model, reduction, passes):
    reduced = []

    def allreduce(grad):
        """Stands in for a reduction with a worker whose gradients are zero."""
        def halve(value):
            reduced.append(value)
            return value / np.float32(2.)

        result = tf.py_func(halve, [grad], grad.dtype)
        result.set_shape(grad.shape)
        return result

    opt = tf1accum.AccumulatingOptimizer(
        Sgd.make(0.1), passes, reduction=reduction,
        transform=lambda pairs: [(allreduce(g), v) for g, v in pairs])
    train_op = opt.minimize(model.loss)
    values = model.start
    batches = model.batches(4 * passes)
    with models.session() as session:
        for run, batch in enumerate(batches, 1):
            session.run(train_op, model.feed(batch))
            assert len(reduced) == 2 * (run // passes)
        for start in range(0, len(batches), passes):
            reduce = np.mean if reduction == "mean" else np.sum
            values = [value - 0.1 * reduce(grads, axis=0) / 2.
                      for value, grads in zip(values, zip(*[
                          model.gradients(values, batch)
                          for batch in batches[start:start + passes]]))]
        assert_close(session.run(model.variables), values)


def test_the_ports_are_there_once_the_package_is():
    assert tf1accum.ports is ports
    for name in ("AccumGradOptimizer", "AccumulatingOptimizer"):
        words = " ".join(getattr(ports, name).__doc__.split())
        assert "differs from `build` in what a new script does not want" in (
            words)
    assert "backward_passes_per_step" in ports.__doc__
