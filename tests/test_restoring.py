"""The model out of any checkpoint that has it; the rest as at the start."""

import os

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import models
import tf1accum
from conftest import in_pairs

ADAM = {"learning_rate": 0.1, "epsilon": 1.}


def build(model, **kwargs):
    return tf1accum.build(
        model.loss, model.variables, optimizer=tf.train.AdamOptimizer(**ADAM),
        k=2, **kwargs)


def save(path, arrays):
    """A checkpoint with `arrays`, a dict by key."""
    with tf.Graph().as_default(), tf.Session() as session:
        variables = {key: tf.Variable(value) for key, value in arrays.items()}
        session.run([v.initializer for v in variables.values()])
        return tf.train.Saver(variables).save(session, str(path))


def recipe_file(path):
    """What a script leaves that keeps its own accumulators and Adam."""
    model = {"model/w": np.full([3, 2], 3., np.float32),
             "model/b": np.full([2], 4., np.float32)}
    rest = {
        "Variable_1": np.ones([3, 2], np.float32),
        "model/w/accum": np.ones([3, 2], np.float32),
        "model/w/Adam": np.ones([3, 2], np.float32),
        "model/b/Adam_1": np.ones([2], np.float32),
        "beta1_power": np.float32(0.5), "global_step": np.int64(7)}
    return save(path, dict(model, **rest)), model, rest


@in_pairs
def test_the_file_of_a_recipe_is_restored(behaviour, use_resource, tmp_path):
    """Rows D1, D2 and D9: no key of the recipe is read, or missed."""
    path, arrays, rest = recipe_file(tmp_path / "old")
    model = models.Regression(use_resource=use_resource)
    step = tf.train.get_or_create_global_step()
    ops = build(model, global_step=step)
    local = tf.get_variable(
        "local", [], collections=[tf.GraphKeys.LOCAL_VARIABLES])
    tf.get_default_graph().finalize()
    with tf.Session() as session:
        # In use before: what moved starts anew.
        session.run([v.initializer for v in tf.global_variables()])
        for batch in model.batches(2):
            session.run(ops.accumulate, model.feed(batch))
        session.run(ops.apply)
        report = tf1accum.restore_model(session, path)
        got = dict(zip([v.op.name for v in tf.global_variables()],
                       session.run(tf.global_variables())))
        assert session.run(local) is not None
    assert sorted(report.restored) == ["global_step", "model/b", "model/w"]
    assert report.unused == sorted(set(rest) - {"global_step"})
    assert sorted(report.initialized) == sorted(
        (set(got) | {"local"}) - set(report.restored))
    for name, value in arrays.items():
        np.testing.assert_array_equal(got.pop(name), value)
    assert got.pop("global_step") == 7
    assert got.pop("beta1_power") == np.float32(0.9)
    assert got.pop("beta2_power") == np.float32(0.999)
    assert all(not value.any() for value in got.values()), got


def test_training_goes_on_as_from_fresh_weights(tmp_path):
    """One window of Adam on the restored weights, against NumPy."""
    path, arrays, _ = recipe_file(tmp_path / "old")
    model = models.Regression()
    ops = build(model)
    batches = model.batches(2)
    with tf.Session() as session:
        tf1accum.restore_model(session, path)
        for batch in batches:
            session.run(ops.accumulate, model.feed(batch))
        session.run(ops.apply)
        got = session.run(model.variables)
    start = [arrays["model/w"], arrays["model/b"]]
    for value, before, grads in zip(got, start, zip(*[
            model.gradients(start, batch) for batch in batches])):
        mean = np.mean(grads, axis=0)
        # The first step of Adam: m / (1 - beta1) = g, v / (1 - beta2) = g^2,
        # with TensorFlow's epsilon scaled by sqrt(1 - beta2).
        expected = before - ADAM["learning_rate"] * mean / (
            np.abs(mean) + ADAM["epsilon"] / np.sqrt(1 - 0.999))
        np.testing.assert_allclose(value, expected, rtol=1e-4)


def test_partitions_are_restored_from_the_whole(use_resource, tmp_path):
    whole = np.arange(12, dtype=np.float32).reshape(6, 2)
    path = save(tmp_path / "old", {"w": whole})
    parts = tf.get_variable(
        "w", [6, 2], partitioner=tf.fixed_size_partitioner(3),
        use_resource=use_resource)
    tf1accum.build(tf.reduce_sum(tf.square(parts)), k=2,
                   optimizer=tf.train.AdamOptimizer())
    with tf.Session() as session:
        report = tf1accum.restore_model(session, path)
        np.testing.assert_array_equal(
            session.run(tf.convert_to_tensor(parts)), whole)
    assert report.restored == ["w/part_0", "w/part_1", "w/part_2"]
    assert report.unused == []


@pytest.mark.parametrize("arrays, words", [
    ({"model/b": np.zeros([2], np.float32)}, "model/w is not in it"),
    ({"model/w": np.zeros([3, 4], np.float32)},
     "model/w is float32 of shape [3, 4] there, and float32 of shape (3, 2) in "
     "the graph; model/b is not in it"),
    ({"model/w": np.zeros([3, 2], np.float32), "model/b": np.zeros([2])},
     "model/b is float64 of shape [2] there, and float32 of shape (2,) in")])
def test_what_does_not_fit_is_named_and_nothing_moves(tmp_path, arrays, words):
    path = save(tmp_path / "old", arrays)
    model = models.Regression()
    build(model)
    with models.session() as session:
        before = session.run(tf.global_variables())
        with pytest.raises(ValueError) as error:
            tf1accum.restore_model(session, path)
        for old, new in zip(before, session.run(tf.global_variables())):
            np.testing.assert_array_equal(old, new)
    assert str(error.value).startswith(
        "tf1accum.restore_model: the checkpoint must hold each variable")
    assert words in str(error.value)


def test_what_is_no_checkpoint_is_said_so(tmp_path):
    build(models.Regression())
    path, _, _ = recipe_file(tmp_path / "old")
    with open(path + ".index", "r+b") as file:
        file.truncate(20)
    empty = tmp_path / "empty"
    empty.mkdir()
    with models.session() as session:
        for bad in (str(tmp_path / "none"), path, str(tmp_path), str(empty)):
            with pytest.raises(ValueError) as error:
                tf1accum.restore_model(session, bad)
            assert str(error.value).startswith(
                "tf1accum.restore_model: save_path must be the prefix of a "
                "checkpoint, as Saver.save returns it; got {!r}: ".format(bad))
            assert "\n" not in str(error.value)


def test_other_arguments_are_refused(tmp_path):
    path, _, _ = recipe_file(tmp_path / "old")
    model = models.Regression()
    ops = build(model)
    with models.session() as session:
        for error, words, arguments in (
                (TypeError, "session must be a tf.Session; got", (path, path)),
                (TypeError, "save_path must be a path; got 5", (session, 5)),
                (TypeError, "must be a path; got None", (session, None)),
                (ValueError, "without the end that tells its files apart",
                 (session, path + ".index")),
                (ValueError, "optional must list variables of the model; got",
                 (session, path, [model.x]))):
            with pytest.raises(error) as raised:
                tf1accum.restore_model(*arguments)
            assert str(raised.value).startswith("tf1accum.restore_model: ")
            assert words in str(raised.value)
    hooks = [tf1accum.AccumulationHook(ops)]
    with tf.train.MonitoredSession(hooks=hooks) as session:
        with pytest.raises(TypeError) as raised:
            tf1accum.restore_model(session, path)
    assert "Scaffold(init_fn=" in str(raised.value)


def test_a_scaffold_restores_in_its_init_fn(tmp_path):
    path, arrays, _ = recipe_file(tmp_path / "old")
    model = models.Regression()
    build(model)
    scaffold = tf.train.Scaffold(
        init_fn=lambda _, session: tf1accum.restore_model(session, path))
    with tf.train.MonitoredTrainingSession(scaffold=scaffold) as session:
        np.testing.assert_array_equal(
            session.run(model.w), arrays["model/w"])


def test_what_is_new_in_the_model_may_be_missing(tmp_path):
    path = save(tmp_path / "old", {"model/w": np.ones([3, 2], np.float32),
                                   "model/b": np.ones([2], np.float32)})
    model = models.Regression()
    step = tf.train.get_or_create_global_step()
    build(model, global_step=step)
    with tf.Session() as session:
        with pytest.raises(ValueError) as error:
            tf1accum.restore_model(session, path)
        assert "global_step is not in it" in str(error.value)
        report = tf1accum.restore_model(session, path, optional=[step])
        assert session.run(step) == 0
    assert sorted(report.restored) == ["model/b", "model/w"]
    assert "global_step" in report.initialized


def test_variables_of_others_keep_what_they_have(tmp_path):
    path, _, _ = recipe_file(tmp_path / "old")
    model = models.Regression()
    build(model)
    local = [tf.Variable(initial, trainable=False, collections=[
        tf.GraphKeys.LOCAL_VARIABLES]) for initial in (
            1., 2., tf.placeholder(tf.float32, []))]
    with tf.Session() as session:
        session.run(local[0].assign(5.))
        report = tf1accum.restore_model(session, path)
        assert session.run(local[:2]) == [5., 2.]
    assert local[1].op.name in report.initialized
    assert not {local[0].op.name, local[2].op.name} & set(report.initialized)


@pytest.mark.parametrize("value", [
    b"text", True, np.float16(1.5), np.int8(3), np.complex64(2j)])
def test_values_of_every_type_are_restored(value, use_resource, tmp_path):
    extra = tf.get_variable(
        "extra", initializer=value, trainable=False, use_resource=use_resource)
    saver = tf.train.Saver([extra])
    with models.session() as session:
        path = saver.save(session, str(tmp_path / "old"))
    with tf.Session() as session:
        tf1accum.restore_model(session, path)
        assert session.run(extra) == value


def test_a_shape_that_an_initial_value_cannot_have_is_an_error(tmp_path):
    path = save(tmp_path / "old", {"w": np.ones([2], np.float32),
                                   "open": np.ones([3], np.float32)})
    weight = tf.get_variable("w", initializer=np.zeros([2], np.float32))
    tf.Variable(tf.zeros([2]), validate_shape=False, trainable=False,
                name="open")
    with models.session() as session:
        with pytest.raises(ValueError) as error:
            tf1accum.restore_model(session, path)
        np.testing.assert_array_equal(session.run(weight), [0., 0.])
    assert "open is float32 of shape [3] there" in str(error.value)


def test_a_missing_shard_restores_nothing(tmp_path):
    path, _, _ = recipe_file(tmp_path / "old")
    os.remove(path + ".data-00000-of-00001")
    model = models.Regression()
    build(model)
    with models.session() as session:
        before = session.run(model.variables)
        with pytest.raises(ValueError) as error:
            tf1accum.restore_model(session, path)
        for old, new in zip(before, session.run(model.variables)):
            np.testing.assert_array_equal(old, new)
    assert "must be the prefix of a checkpoint" in str(error.value)
