"""What a checkpoint of the model alone holds."""

import os

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import models
import tf1accum
from conftest import in_pairs


class OwnState:
    """An optimizer that keeps its state in plain variables made in apply.

    As BERT's: `get_variable`, no slots, no `variables()`.
    """

    def compute_gradients(self, loss, var_list):
        return list(zip(tf.gradients(loss, var_list), var_list))

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        ops = []
        for grad, variable in grads_and_vars:
            m = tf.get_variable(variable.op.name + "/adam_m",
                                shape=variable.shape, trainable=False,
                                initializer=tf.zeros_initializer())
            steps = tf.Variable(0., trainable=False, name="steps")
            ops += [m.assign(0.9 * m + grad), steps.assign_add(1.),
                    variable.assign_sub(0.1 * grad)]
        return tf.group(*ops, name=name)


OPTIMIZERS = dict(models.OPTIMIZERS, own_state=OwnState)


def keys(path):
    return sorted(name for name, _ in tf.train.list_variables(path))


def build(model, optimizer, **kwargs):
    return tf1accum.build(model.loss, model.variables,
                          optimizer=optimizer, k=2, **kwargs)


def odd_model(use_resource=True):
    """A model with all that belongs to one, under names that mislead."""
    model = models.Regression("Adam_layer", use_resource)
    extra = [
        tf.get_variable("Variable_scale", [2], use_resource=use_resource),
        tf.get_variable("accumulation_gate", [2], use_resource=use_resource),
        tf.get_variable("bn/moving_mean", [2], trainable=False,
                        use_resource=use_resource),
        tf.get_variable("beta1_power_of_two", [], trainable=False,
                        use_resource=use_resource),
    ]
    step = tf.train.get_or_create_global_step()
    names = sorted(v.op.name for v in model.variables + extra + [step])
    return model, step, names


@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
@in_pairs
def test_the_keys_are_exactly_the_models(
        behaviour, use_resource, optimizer, tmp_path):
    """Rows D1, D2, D3, D4, D6 and D8."""
    model, step, names = odd_model(use_resource)
    ops = build(model, OPTIMIZERS[optimizer](), global_step=step)
    path = str(tmp_path / "model")
    with models.session() as session:
        ops.model_saver().save(session, path)
    assert keys(path) == names
    assert sorted(v.op.name for v in tf1accum.model_variables()) == names


def test_two_windows_and_a_shared_optimizer_are_both_left_out():
    model, _, names = odd_model()
    other = models.Regression("other")
    adam = tf.train.AdamOptimizer()
    build(model, adam)
    build(other, adam, collections=["mine", tf.GraphKeys.GLOBAL_VARIABLES])
    build(other, tf.train.MomentumOptimizer(0.1, 0.9))
    assert sorted(v.op.name for v in tf1accum.model_variables()) == sorted(
        names + ["other/w", "other/b"])


def test_slots_that_were_there_before_the_window_are_left_out():
    model = models.Regression()
    adam = tf.train.AdamOptimizer()
    adam.minimize(model.loss)
    build(model, adam)
    assert [v.op.name for v in tf1accum.model_variables()] == [
        "model/w", "model/b"]


def plain_script(path, optimizer=None):
    """The same model in a script that knows nothing of tf1accum."""
    with tf.Graph().as_default():
        model = models.Regression()
        if optimizer:
            optimizer.minimize(model.loss)
        saver = tf.train.Saver(model.variables if optimizer is None else None)
        with models.session() as session:
            if os.path.exists(path + ".index"):
                saver.restore(session, path)
            else:
                session.run([v.assign(v * 0. + 3.) for v in model.variables])
                saver.save(session, path)
            return session.run(model.variables)


def test_a_script_without_tf1accum_restores_the_file(behaviour, tmp_path):
    path = str(tmp_path / "model")
    model = models.Regression()
    ops = build(model, tf.train.AdamOptimizer())
    with models.session() as session:
        session.run([v.assign(v * 0. + 7.) for v in model.variables])
        ops.model_saver().save(session, path)
    for value in plain_script(path):
        np.testing.assert_array_equal(value, np.full(value.shape, 7.))


@pytest.mark.parametrize("with_slots", [False, True])
def test_the_file_of_a_script_without_tf1accum_is_restored(
        behaviour, tmp_path, with_slots):
    path = str(tmp_path / "model")
    plain_script(path, tf.train.AdamOptimizer() if with_slots else None)
    model = models.Regression()
    ops = build(model, tf.train.AdamOptimizer())
    with tf.Session() as session:
        ops.model_saver().restore(session, path)
        session.run(ops.initializer)
        for value in session.run(model.variables):
            np.testing.assert_array_equal(value, np.full(value.shape, 3.))
        session.run(ops.accumulate, model.feed(model.batches(1)[0]))
        session.run(ops.apply)


def test_a_saver_takes_the_arguments_of_a_saver(tmp_path):
    model = models.Regression()
    ops = build(model, tf.train.AdamOptimizer())
    saver = ops.model_saver(max_to_keep=2)
    with models.session() as session:
        paths = [saver.save(session, str(tmp_path / "m"), global_step=i)
                 for i in range(4)]
    assert saver.last_checkpoints == paths[2:]
    for function in (tf1accum.model_saver, tf1accum.resumable_saver):
        with pytest.raises(TypeError) as error:
            function(var_list=[model.w])
        assert "tf1accum.{}: knows which variables it is for".format(
            function.__name__) in str(error.value)


def test_the_saver_of_a_record_is_made_in_its_own_graph():
    model = models.Regression()
    ops = build(model, tf.train.AdamOptimizer())
    with tf.Graph().as_default() as other:
        saver = ops.model_saver()
        assert not other.get_operations()
    assert saver.saver_def.filename_tensor_name.startswith("save/")


def test_model_variables_of_another_graph(graph):
    build(models.Regression(), tf.train.AdamOptimizer())
    with tf.Graph().as_default():
        assert [v.op.name for v in tf1accum.model_variables(graph)] == [
            "model/w", "model/b"]
        assert tf1accum.model_variables() == []


class Wrapper:
    """Holds another optimizer, and lists what it should not."""

    def __init__(self, inner, variables):
        self.inner = inner
        self.variables = variables

    def compute_gradients(self, loss, var_list):
        return self.inner.compute_gradients(loss, var_list)

    def apply_gradients(self, grads_and_vars):
        return self.inner.apply_gradients(grads_and_vars)


def test_state_is_that_of_a_wrapped_optimizer_too_and_never_the_weights():
    model = models.Regression()
    adam = tf.train.AdamOptimizer()
    adam.minimize(model.loss)
    own = tf.Variable(0., trainable=False, name="own")
    build(model, Wrapper(adam, model.variables + [own]))
    assert [v.op.name for v in tf1accum.model_variables()] == [
        "model/w", "model/b"]


def files_size(path):
    return sum(os.path.getsize(path + end)
               for end in (".index", ".data-00000-of-00001"))


def test_a_model_file_is_as_large_as_the_model(tmp_path):
    """Row D3: a default saver writes four times as much, with Adam."""
    big = tf.get_variable("big", [400, 500], use_resource=True)
    ops = tf1accum.build(tf.reduce_sum(tf.square(big)), k=2,
                         optimizer=tf.train.AdamOptimizer())
    size = 400 * 500 * 4
    with models.session() as session:
        lean = ops.model_saver().save(session, str(tmp_path / "lean"))
        whole = tf.train.Saver().save(session, str(tmp_path / "whole"))
    assert files_size(lean) <= 1.02 * size
    assert files_size(whole) >= 3.9 * size


def test_what_savers_leave_out_is_readable():
    model, _, names = odd_model()
    ops = build(model, tf.train.AdamOptimizer())
    local = tf.get_variable(
        "local", [], collections=[tf.GraphKeys.LOCAL_VARIABLES])
    every = {v.op.name for v in tf.global_variables()} | {"local"}
    saver = ops.model_saver()
    assert {v.op.name for v in saver.left_out} == every - set(names)
    assert tf1accum.resumable_saver().left_out == [local]


@in_pairs
@pytest.mark.parametrize("collections", [
    None, [tf.GraphKeys.LOCAL_VARIABLES], ["mine"]])
def test_a_resumable_file_holds_the_open_window(
        behaviour, use_resource, collections, tmp_path):
    """Row C9. Rows, weights, count, loss and slots: as if never stopped."""
    table = tf.get_variable(
        "table", initializer=np.ones([5, 2], np.float32),
        use_resource=use_resource)
    scale = tf.get_variable("scale", initializer=2., use_resource=use_resource)
    ids, weight = tf.placeholder(tf.int32, [None]), tf.placeholder(
        tf.float32, [])
    step = tf.train.get_or_create_global_step()
    ops = tf1accum.build(
        scale * tf.reduce_sum(tf.nn.embedding_lookup(table, ids)),
        optimizer=tf.train.AdamOptimizer(0.1), k=3, weight=weight,
        nonfinite="skip", global_step=step, collections=collections)
    saver = tf1accum.resumable_saver()
    feeds = [{ids: [i % 5, (2 * i) % 5, 1], weight: 1. + i} for i in range(6)]
    feeds[4][weight] = np.nan

    def run(session, numbers):
        for number in numbers:
            session.run(ops.accumulate, feeds[number])
            if number in (2, 5):
                session.run(ops.apply_and_reset)

    def everything(session):
        return session.run([
            table, scale, step, ops.average_loss, ops.count, ops.weight,
            ops.skipped] + slots)

    slots = [v for v in tf.global_variables() if "Adam" in v.op.name
             or v.op.name.startswith("beta")]
    assert len(slots) == 6
    init = [tf.global_variables_initializer(), ops.initializer]
    with tf.Session() as session:
        session.run(init)
        run(session, range(6))
        expected = everything(session)
    with tf.Session() as session:
        session.run(init)
        run(session, range(5))
        path = saver.save(session, str(tmp_path / "whole"))
    with tf.Session() as session:
        saver.restore(session, path)
        assert session.run([ops.count, ops.weight, ops.skipped]) == [1, 4., 1]
        run(session, [5])
        for got, value in zip(everything(session), expected):
            np.testing.assert_array_equal(got, value)


@pytest.mark.parametrize("make, slot", [
    (tf1accum.model_saver, 0.), (tf1accum.resumable_saver, 1.)])
def test_a_scaffold_takes_either_saver(behaviour, make, slot, tmp_path):
    """What a model file lacks is initialised when the session restores it."""
    model = models.Regression()
    step = tf.train.get_or_create_global_step()
    adam = tf.train.AdamOptimizer()
    ops = build(model, adam, global_step=step)
    mark = [v.assign(v * 0. + 1.) for v in (
        model.w, adam.get_slot(model.w, "m"))] + [step.assign(5)]

    def session():
        return tf.train.MonitoredTrainingSession(
            checkpoint_dir=str(tmp_path), save_checkpoint_steps=1,
            scaffold=tf.train.Scaffold(saver=saver),
            log_step_count_steps=None, save_summaries_steps=None)

    saver = make()
    with session() as running:
        running.run(ops.accumulate, model.feed(model.batches(1)[0]))
        running.run(mark)
    with tf.Graph().as_default():
        model = models.Regression()
        step = tf.train.get_or_create_global_step()
        adam = tf.train.AdamOptimizer()
        ops = build(model, adam, global_step=step)
        saver = make()
        with session() as running:
            got = running.run_step_fn(
                lambda step_context: step_context.session.run([
                    model.w, adam.get_slot(model.w, "m"), step, ops.count]))
    np.testing.assert_array_equal(got[0], np.ones([3, 2]))
    np.testing.assert_array_equal(got[1], np.full([3, 2], slot))
    assert got[2:] == [5, int(slot)]


def test_a_restore_keeps_what_has_a_value(tmp_path):
    """As any saver does: a running optimizer is not reset by new weights."""
    model = models.Regression()
    adam = tf.train.AdamOptimizer()
    ops = build(model, adam)
    saver = ops.model_saver()
    slot = adam.get_slot(model.w, "m")
    with models.session() as session:
        path = saver.save(session, str(tmp_path / "model"))
        session.run(slot.assign(slot + 1.))
        saver.restore(session, path)
        np.testing.assert_array_equal(session.run(slot), np.ones([3, 2]))


def test_a_saver_may_be_empty_or_sharded_or_elsewhere(tmp_path):
    with tf.name_scope("elsewhere"):
        empty = tf1accum.model_saver(allow_empty=True)
    with tf.Session() as session:
        empty.restore(session, empty.save(session, str(tmp_path / "empty")))
    model = models.Regression()
    ops = build(model, tf.train.AdamOptimizer())
    with tf.name_scope("elsewhere"):
        saver = ops.model_saver(name="mine", sharded=True)
    assert not [op.name for op in tf.get_default_graph().get_operations()
                if op.name.startswith("elsewhere")]
    with models.session() as session:
        path = saver.save(session, str(tmp_path / "model"))
    with tf.Session() as session:
        saver.restore(session, path)
        assert session.run(ops.count) == 0


class Careless:
    """Keeps optimizers in a list, itself too, and trains its own state."""

    def __init__(self):
        self.inner = [tf.train.AdamOptimizer(),
                      tf.train.MomentumOptimizer(1., 0.5)]
        self.itself = self

    def compute_gradients(self, loss, var_list):
        return self.inner[0].compute_gradients(loss, var_list)

    def apply_gradients(self, grads_and_vars):
        return tf.group(*[
            optimizer.apply_gradients([pair])
            for optimizer, pair in zip(self.inner, grads_and_vars)] + [
                tf.Variable(tf.zeros_like(variable), name="careless").assign(
                    grad) for grad, variable in grads_and_vars])


def test_state_of_a_careless_optimizer_is_no_part_of_the_model():
    model = models.Regression()
    careless = Careless()
    careless.apply_gradients(
        careless.compute_gradients(model.loss, model.variables))
    before = [v.op.name for v in tf.trainable_variables()]
    assert before == ["model/w", "model/b", "careless", "careless_1"]
    build(model, careless)
    # Those that were made before the window are nobody's.
    assert [v.op.name for v in tf1accum.model_variables()] == before
