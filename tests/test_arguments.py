"""What goes wrong gives one clear error, and leaves the graph as it was."""

import warnings

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import models
import tf1accum
from models import refuses

SGD = tf.train.GradientDescentOptimizer(0.1)


@pytest.fixture
def model():
    return models.Regression()


@pytest.mark.parametrize("k, error_class, got", [
    (0, ValueError, "got 0"), (-1, ValueError, "got -1"),
    (True, TypeError, "got True of type bool"),
    (2., TypeError, "got 2.0 of type float"),
    ("2", TypeError, "got '2' of type str"),
    (None, TypeError, "got None of type NoneType")])
def test_k_must_be_a_positive_integer(model, k, error_class, got):
    """Row A13."""
    rule = "must be a positive integer"
    grad = model.w + 0.
    refuses(error_class, ["tf1accum.build: k", rule, got],
            lambda: tf1accum.build(model.loss, optimizer=SGD, k=k))
    refuses(error_class, ["tf1accum.build_from_gradients: k", rule, got],
            lambda: tf1accum.build_from_gradients(
                [(grad, model.w)], optimizer=SGD, k=k))


def test_k_may_be_an_integer_of_numpy(model):
    ops = tf1accum.build(model.loss, optimizer=SGD, k=np.int64(3))
    assert isinstance(ops.apply, tf.Operation)


def test_eager_execution_is_refused(model, monkeypatch):
    monkeypatch.setattr(tf, "executing_eagerly", lambda: True)
    grad = model.w + 0.
    words = ["needs a graph", "tf.disable_eager_execution()"]
    refuses(RuntimeError, words, lambda: tf1accum.build(
        model.loss, optimizer=SGD, k=2))
    refuses(RuntimeError, words, lambda: tf1accum.build_from_gradients(
        [(grad, model.w)], optimizer=SGD, k=2))


def test_the_loss_must_be_one_float_of_this_graph(model):
    def build(loss):
        return lambda: tf1accum.build(
            loss, model.variables, optimizer=SGD, k=2)
    refuses(TypeError, ["loss must be a tensor", "got 1.0"], build(1.))
    refuses(TypeError, ["loss must be a tensor"], build(None))
    refuses(TypeError, ["loss must be of a float type", "of int32", "Cast"],
            build(tf.reduce_sum(tf.cast(model.w, tf.int32))))
    vector = tf.reduce_sum(model.w, axis=1, name="vector")
    refuses(ValueError, ["one number", "vector:0 of shape (3,)",
                         "tf.reduce_mean"], build(vector))
    with tf.Graph().as_default():
        other = tf.constant(1., name="other")
    refuses(ValueError, ["loss must be of the default graph", "other:0",
                         "loss.graph.as_default()"], build(other))


def test_the_variables_must_be_some_each_once_of_this_graph(model):
    def build(var_list):
        return lambda: tf1accum.build(
            model.loss, var_list, optimizer=SGD, k=2)
    refuses(ValueError, ["var_list holds no variable"], build([]))
    refuses(ValueError, ["each variable once", "model/w:0 twice"],
            build([model.w, model.b, model.w]))
    tensor = tf.add(model.w, 1., name="tensor")
    refuses(TypeError, ["must hold variables", "tensor:0"], build([tensor]))
    with tf.Graph().as_default():
        other = tf.get_variable("other", [])
    refuses(ValueError, ["var_list must be of the default graph", "other:0"],
            build([other]))
    with tf.Graph().as_default():
        loss = tf.constant(1.)
        refuses(ValueError, ["var_list holds no variable"],
                lambda: tf1accum.build(loss, optimizer=SGD, k=2))


def test_an_optimizer_must_be_one(model):
    class NoApply:
        def compute_gradients(self, loss, var_list):
            raise AssertionError("called")

    def build(optimizer):
        return lambda: tf1accum.build(model.loss, optimizer=optimizer, k=2)
    refuses(TypeError, ["got None without compute_gradients and "
                        "apply_gradients"], build(None))
    refuses(TypeError, ["without apply_gradients"], build(NoApply()))
    refuses(TypeError, ["the class AdamOptimizer itself", "an instance"],
            build(tf.train.AdamOptimizer))
    grad = tf.ones([3, 2])
    refuses(TypeError, ["tf1accum.build_from_gradients: optimizer must",
                        "without apply_gradients"],
            lambda: tf1accum.build_from_gradients(
                [(grad, model.w)], optimizer=NoApply(), k=2))


def test_the_global_step_must_be_an_integer_variable(model):
    def build(step):
        return lambda: tf1accum.build(
            model.loss, model.variables, optimizer=SGD, k=2, global_step=step)
    refuses(TypeError, ["global_step must be a variable or None", "got 0"],
            build(0))
    step = tf.get_variable("step", [], tf.float32, trainable=False)
    refuses(TypeError, ["of an integer type", "step:0 of float32"],
            build(step))
    with tf.Graph().as_default():
        other = tf.train.get_or_create_global_step()
    refuses(ValueError, ["global_step must be of the default graph"],
            build(other))


def test_reduction_and_name_are_checked(model):
    refuses(ValueError, ['must be "mean" or "sum"', "got 'avg'"],
            lambda: tf1accum.build(
                model.loss, optimizer=SGD, k=2, reduction="avg"))
    for name in ("", "a b", "_a", "a/b", 3, None):
        refuses(ValueError, ["name must be one scope", "got %r" % (name,)],
                lambda name=name: tf1accum.build(
                    model.loss, optimizer=SGD, k=2, name=name))


def test_update_ops_must_be_ops(model):
    refuses(TypeError, ["update_ops must hold ops or tensors", "got 'w'"],
            lambda: tf1accum.build(
                model.loss, optimizer=SGD, k=2, update_ops=["w"]))


def test_the_pairs_must_be_gradients_and_variables(model):
    def build(pairs):
        return lambda: tf1accum.build_from_gradients(pairs, optimizer=SGD, k=2)
    grad = tf.ones([3, 2], name="grad")
    refuses(TypeError, ["(gradient, variable) pairs"], build([grad]))
    refuses(TypeError, ["must hold variables"], build([(model.w, grad)]))
    refuses(TypeError, ["the gradient of model/w:0 must be a tensor",
                        "Arrays"], build([(np.ones([3, 2]), model.w)]))
    refuses(ValueError, ["the gradient of model/b:0 must have its shape, (2,)",
                         "grad:0 of shape (3, 2)"],
            build([(grad, model.b)]))
    refuses(ValueError, ["each variable once"],
            build([(grad, model.w), (grad, model.w)]))
    refuses(ValueError, ["holds no variable"], build([]))
    with tf.Graph().as_default():
        other = tf.ones([3, 2], name="other")
    refuses(ValueError, ["the gradient of model/w:0 must be of the default",
                         "other:0"], build([(other, model.w)]))


def test_a_loss_that_reaches_no_variable_is_refused(model):
    words = ["at least one variable must have a gradient",
             "model/w:0, model/b:0"]
    refuses(ValueError, words, lambda: tf1accum.build_from_gradients(
        [(None, model.w), (None, model.b)], optimizer=SGD, k=2))
    losses = [tf.constant(1.),
              tf.cast(tf.reduce_sum(tf.argmax(model.w)), tf.float32),
              tf.reduce_sum(tf.stop_gradient(model.w))]
    for loss in losses:
        refuses(ValueError, words, lambda loss=loss: tf1accum.build(
            loss, optimizer=SGD, k=2))
    # Only the gradient function itself knows that a floor has none.
    with pytest.raises(ValueError) as error:
        tf1accum.build(tf.reduce_sum(tf.floor(model.w)), optimizer=SGD, k=2)
    assert "at least one variable must have a gradient" in str(error.value)


def test_a_variable_without_a_gradient_is_named_and_left_as_it_is(model):
    """Row E1."""
    unused = tf.get_variable("unused", initializer=5.)
    number = tf.get_variable("number", initializer=5, trainable=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ops = tf1accum.build(
            model.loss, [unused] + model.variables + [number],
            optimizer=SGD, k=1)
    said = [str(w.message) for w in caught
            if "tf1accum" in str(w.message)]
    assert len(said) == 1
    assert "no gradient for unused:0, number:0; left as they are" in said[0]
    assert [w.filename for w in caught if "tf1accum" in str(w.message)] == [
        __file__]
    assert ops.variables == model.variables
    with models.session() as session:
        batch = model.batches(1)[0]
        session.run(ops.accumulate, model.feed(batch))
        session.run(ops.apply)
        assert session.run([unused, number]) == [5., 5]
        np.testing.assert_allclose(
            session.run(model.b), model.start[1] - 0.1 * model.gradients(
                model.start, batch)[1], rtol=1e-5)


def test_a_loss_must_surely_be_one_number():
    v = tf.get_variable("v", [])
    for shape in ([None], [None, 1], [2]):
        loss = tf.placeholder_with_default(
            v * tf.ones([2] + [1] * (len(shape) - 1)), shape, name="loss")
        refuses(ValueError, ["loss must be one number", "got loss"],
                lambda loss=loss: tf1accum.build(
                    loss, [v], optimizer=SGD, k=2))


def test_what_has_no_value_in_some_runs_is_refused():
    """Row A8: neither a loss nor a gradient may be of a branch or a loop."""
    v = tf.get_variable("v", initializer=1.)
    inside = []

    def branch():
        loss = v * 2.
        inside.append((loss, tf.gradients(loss, v)[0]))
        return loss

    tf.cond(tf.placeholder_with_default(False, []), branch, lambda: 0.)
    loss, grad = inside[0]
    refuses(ValueError, ["loss must be outside of every tf.cond", "cond/"],
            lambda: tf1accum.build(loss, [v], optimizer=SGD, k=2))
    refuses(ValueError, ["each gradient must be outside of", "cond/"],
            lambda: tf1accum.build_from_gradients(
                [(grad, v)], optimizer=SGD, k=2))


def test_lists_must_be_lists(model):
    grad = tf.ones([3, 2])
    for call, words in (
            (lambda: tf1accum.build(model.loss, SGD, 4),
             ["var_list must be a list; got <", "GradientDescentOptimizer"]),
            (lambda: tf1accum.build(model.loss, grad, SGD, 4),
             ["var_list must be a list; got"]),
            (lambda: tf1accum.build(model.loss, optimizer=SGD, k=4,
                                    update_ops=grad),
             ["update_ops must be a list; got"]),
            (lambda: tf1accum.build(model.loss, optimizer=SGD, k=4,
                                    update_ops=grad.op),
             ["update_ops must be a list; got"]),
            (lambda: tf1accum.build(model.loss, optimizer=SGD, k=4,
                                    collections="mine"),
             ["collections must be a list; got 'mine'"]),
            (lambda: tf1accum.build(model.loss, optimizer=SGD, k=4,
                                    collections=[5]),
             ["collections must hold names of graph collections; got [5]"]),
            (lambda: tf1accum.build_from_gradients(None, SGD, 4),
             ["grads_and_vars must be a list; got None"])):
        refuses(TypeError, words, call)


def test_the_global_step_must_be_one_number(model):
    step = tf.get_variable("step", [2], tf.int64, tf.zeros_initializer(),
                           trainable=False)
    refuses(ValueError, ["global_step must be one number", "step:0"],
            lambda: tf1accum.build(model.loss, model.variables, optimizer=SGD,
                                   k=2, global_step=step))


def test_gradients_must_be_of_a_type_like_the_variables(model):
    for grad in (tf.ones([3, 2], tf.int32), tf.ones([3, 2], tf.complex64),
                 tf.fill([3, 2], "a")):
        refuses(TypeError, ["the gradient of model/w:0 must be of a type like "
                            "its own, float32"],
                lambda grad=grad: tf1accum.build_from_gradients(
                    [(grad, model.w)], optimizer=SGD, k=2))


def test_an_accumulator_type_must_be_a_float_type(model):
    refuses(TypeError, ["accumulator_dtype must be a float type"],
            lambda: tf1accum.build(model.loss, model.variables, optimizer=SGD,
                                   k=2, accumulator_dtype=tf.int32))


def test_a_weight_must_be_a_scalar_tensor(model):
    for weight, error, words in (
            (2., TypeError, "weight must be a scalar tensor"),
            (tf.constant("a"), TypeError, "weight must be a number"),
            (tf.constant([1.]), ValueError, "weight must be a scalar")):
        refuses(error, [words], lambda weight=weight: tf1accum.build(
            model.loss, model.variables, optimizer=SGD, k=2, weight=weight))


def test_an_optimizer_must_return_the_op_that_applies(model):
    class ReturnsNothing(tf.train.GradientDescentOptimizer):
        def apply_gradients(self, *args, **kwargs):
            super().apply_gradients(*args, **kwargs)

    with pytest.raises(TypeError) as error:
        tf1accum.build(model.loss, optimizer=ReturnsNothing(0.1), k=2)
    assert "apply_gradients must return the op that applies" in str(
        error.value)
