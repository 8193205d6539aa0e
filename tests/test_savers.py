"""What a checkpoint of the model alone holds."""

import os

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import models
import tf1accum


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
