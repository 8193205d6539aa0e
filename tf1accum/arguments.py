"""The rules for arguments, and the one error that each breaks into."""

import numbers
import re

import tensorflow.compat.v1 as tf

# In TensorFlow 2 the `Variable` of compat.v1 is the base of reference
# variables alone; the base of both kinds is the one of compat.v2.
_VARIABLE = getattr(tf.compat, "v2", tf).Variable


def check_graph_mode(who):
    """Raises RuntimeError when there is no graph to build in."""
    if tf.executing_eagerly():
        raise RuntimeError(
            "{}: needs a graph to build in; got eager execution. Call "
            "tf.disable_eager_execution() when the program starts, or build "
            "inside `with tf.Graph().as_default():`.".format(who))


def check_k(who, k):
    """Raises unless `k` is a positive integer."""
    if isinstance(k, bool) or not isinstance(k, numbers.Integral):
        raise TypeError(
            "{}: k, the micro-batches in a window, must be a positive "
            "integer; got {!r} of type {}.".format(who, k, type(k).__name__))
    if k < 1:
        raise ValueError(
            "{}: k, the micro-batches in a window, must be a positive "
            "integer; got {}. Use k=1 for a window of one.".format(who, k))


def check_name(who, name):
    """Raises unless `name` can be a name scope."""
    if not isinstance(name, str) or not re.match(
            r"[A-Za-z0-9.][A-Za-z0-9_.\-]*\Z", name):
        raise ValueError(
            "{}: name must be one scope of letters, digits and '._-', not "
            "starting with '_' or '-'; got {!r}.".format(who, name))


def check_reduction(who, reduction):
    """Raises unless `reduction` is "mean" or "sum"."""
    if reduction not in ("mean", "sum"):
        raise ValueError(
            "{}: reduction must be \"mean\" or \"sum\"; got {!r}.".format(
                who, reduction))


def check_optimizer(who, optimizer, methods):
    """Raises TypeError unless `optimizer` is an object with `methods`."""
    missing = [method for method in methods
               if not callable(getattr(optimizer, method, None))]
    if isinstance(optimizer, type) or missing:
        what = ("the class {} itself".format(optimizer.__name__)
                if isinstance(optimizer, type)
                else "{!r} without {}".format(optimizer, " and ".join(missing)))
        raise TypeError(
            "{}: optimizer must be an object with {}; got {}. Pass an instance "
            "of a tf.train optimizer, such as tf.train.AdamOptimizer(1e-3). "
            "(Keras optimizers work on other graphs.)".format(
                who, " and ".join(methods), what))


def check_loss(who, loss):
    """Raises unless `loss` is one float of the default graph."""
    if not isinstance(loss, tf.Tensor):
        raise TypeError(
            "{}: loss must be a tensor; got {!r}.".format(who, loss))
    _check_graph(who, "loss", loss)
    if not loss.dtype.is_floating:
        raise TypeError(
            "{}: loss must be of a float type; got {} of {}. Cast it before "
            "the gradient is taken.".format(who, loss.name, loss.dtype.name))
    if loss.shape.num_elements() not in (1, None):
        raise ValueError(
            "{}: loss must be one number; got {} of shape {}. Reduce it, for "
            "example with tf.reduce_mean.".format(who, loss.name, loss.shape))


def check_global_step(who, global_step):
    """Raises unless `global_step` is None or an integer variable."""
    if global_step is None:
        return
    if not isinstance(global_step, _VARIABLE):
        raise TypeError(
            "{}: global_step must be a variable or None; got {!r}. Use "
            "tf.train.get_or_create_global_step().".format(who, global_step))
    _check_graph(who, "global_step", global_step)
    if not global_step.dtype.is_integer:
        raise TypeError(
            "{}: global_step must be of an integer type; got {} of {}.".format(
                who, global_step.name, global_step.dtype.base_dtype.name))


def check_variables(who, variables):
    """Raises unless `variables` lists variables of the graph, each once."""
    if not variables:
        raise ValueError(
            "{}: var_list holds no variable. Build the model first, or leave "
            "var_list out for all trainable variables.".format(who))
    seen = set()
    for variable in variables:
        if not isinstance(variable, _VARIABLE):
            raise TypeError(
                "{}: var_list must hold variables; got {!r}.".format(
                    who, variable))
        _check_graph(who, "var_list", variable)
        if variable.op.name in seen:
            raise ValueError(
                "{}: var_list must hold each variable once; got {} twice. Its "
                "gradient would be added twice.".format(who, variable.name))
        seen.add(variable.op.name)


def check_pairs(who, grads_and_vars):
    """Raises unless `grads_and_vars` lists (gradient, variable) pairs."""
    for pair in grads_and_vars:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise TypeError(
                "{}: grads_and_vars must hold (gradient, variable) pairs, as "
                "Optimizer.compute_gradients returns them; got {!r}.".format(
                    who, pair))
    check_variables(who, [variable for _, variable in grads_and_vars])
    for grad, variable in grads_and_vars:
        if grad is not None and not hasattr(grad, "graph"):
            raise TypeError(
                "{}: the gradient of {} must be a tensor of the graph or None; "
                "got {!r}. Arrays that were fetched are fed, not built "
                "in.".format(who, variable.name, grad))
        if grad is not None:
            _check_graph(who, "the gradient of " + variable.name, grad)
            if not grad.shape.is_compatible_with(variable.shape):
                raise ValueError(
                    "{}: the gradient of {} must have its shape, {}; got {} of "
                    "shape {}.".format(who, variable.name, variable.shape,
                                       grad.name, grad.shape))


def listed(values):
    """`values` as a list, where one variable is a list of one.

    None, which is not a list of nothing, is the caller's to replace.
    """
    if isinstance(values, _VARIABLE):
        return [values]
    return list(values)


def _check_graph(who, what, element):
    if element.graph is not tf.get_default_graph():
        raise ValueError(
            "{}: {} must be of the default graph; {} is of another. Build "
            "inside `with loss.graph.as_default():`.".format(
                who, what, element.name))
