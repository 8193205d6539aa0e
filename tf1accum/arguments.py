"""The rules for arguments, and the one error that each breaks into."""

import collections
import collections.abc
import numbers
import re

import tensorflow.compat.v1 as tf

from tf1accum import ancestry
from tf1accum import replicas

# In TensorFlow 2 the `Variable` of compat.v1 is the base of reference
# variables alone; the base of both kinds is the one of compat.v2.
VARIABLE = getattr(tf.compat, "v2", tf).Variable


def check_graph_mode(who, instead=None):
    """Raises RuntimeError when there is no graph to build in.

    Or a strategy, outside of the function that its replicas run.

    Args:
      who: name of the function that the program called.
      instead: what to do in any part of a strategy, where `who` works in none;
        or None.
    """
    if tf.executing_eagerly():
        raise RuntimeError(
            "{}: needs a graph to build in; got eager execution. Call "
            "tf.disable_eager_execution() when the program starts, or build "
            "inside `with tf.Graph().as_default():`.".format(who))
    if instead is None:
        replicas.check(who)
    else:
        replicas.check_outside(who, instead)


class Settings(collections.namedtuple("Settings", (
        "k", "global_step", "reduction", "weight", "transform", "after_apply",
        "nonfinite", "sparse", "accumulator_dtype", "accumulator_device",
        "worker_device", "collections", "name", "summarize", "device"),
                                      defaults=(
            None, "mean", None, None, None, "propagate", "rows", None, None,
            None, None, "accumulation", None, None))):
    """What a window is asked to do: the arguments that both builders take.

    And `summarize`, which the every-k-th optimizer takes; and `device`, that of
    what is added, or a function of an op that returns it, which follows from
    `worker_device`.
    """

    __slots__ = ()

    @property
    def unit(self):
        """The weight of a full window, as far as it is known: k, or 1.

        What is added is divided by it, so that a full window holds the mean and
        is handed on without another pass over it.
        """
        return 1 if tf.is_tensor(self.k) else self.k

    @property
    def loss_scale(self):
        """What the loss is multiplied by when it is added."""
        if self.weight is None:
            return 1. / self.unit
        weight = tf.cast(self.weight, tf.float64, name="weight")
        return weight if self.unit == 1 else tf.realdiv(
            weight, self.unit, name="share")

    def scale(self, loss_scale):
        """What a gradient is multiplied by when it is added."""
        if self.reduction == "mean":
            return loss_scale
        return 1. if self.weight is None else self.weight


def check_settings(who, settings):
    """Raises unless each of `settings` is what the builders document."""
    _check_k(who, settings.k)
    _check_global_step(who, settings.global_step)
    check_weight(who, settings.weight)
    _check_name(who, settings.name)
    _check_choice(who, "reduction", settings.reduction, ("mean", "sum"))
    _check_choice(who, "nonfinite", settings.nonfinite,
                  ("propagate", "skip", "raise"))
    _check_choice(who, "sparse", settings.sparse, ("rows", "dense"))
    for what in ("transform", "after_apply", "summarize"):
        function = getattr(settings, what)
        if function is not None and not callable(function):
            raise TypeError(
                "{}: {} must be a function or None; got {!r}.".format(
                    who, what, function))
    device = settings.accumulator_device
    if device is not None and not isinstance(device, str):
        raise TypeError(
            "{}: accumulator_device must be the name of a device, such as "
            "\"/cpu:0\", or None; got {!r}.".format(who, device))
    if settings.collections is not None and any(
            not isinstance(key, str) for key in listed(
                who, "collections", settings.collections)):
        raise TypeError(
            "{}: collections must hold names of graph collections; got "
            "{!r}.".format(who, settings.collections))
    dtype = settings.accumulator_dtype
    if dtype is not None and not tf.as_dtype(dtype).is_floating:
        raise TypeError(
            "{}: accumulator_dtype must be a float type or None; got "
            "{!r}.".format(who, dtype))


def _check_k(who, k):
    if tf.is_tensor(k):
        check_graph(who, "k", k)
        if not k.dtype.is_integer or k.shape.num_elements() not in (1, None):
            raise TypeError(
                "{}: k, as a tensor, must be one integer; got {} of {} and "
                "shape {}.".format(who, k.name, k.dtype.base_dtype.name,
                                   k.shape))
        return
    if isinstance(k, bool) or not isinstance(k, numbers.Integral):
        raise TypeError(
            "{}: k, the micro-batches in a window, must be a positive "
            "integer; got {!r} of type {}.".format(who, k, type(k).__name__))
    if not 1 <= k < 2 ** 63:
        raise ValueError(
            "{}: k, the micro-batches in a window, must be a positive "
            "integer; got {}. Use k=1 for a window of one.".format(who, k))


def _check_name(who, name):
    if not isinstance(name, str) or not re.match(
            r"[A-Za-z0-9.][A-Za-z0-9_.\-]*\Z", name):
        raise ValueError(
            "{}: name must be one scope of letters, digits and '._-', not "
            "starting with '_' or '-'; got {!r}.".format(who, name))


def _check_choice(who, what, value, choices):
    if value not in choices:
        raise ValueError("{}: {} must be {}; got {!r}.".format(
            who, what, " or ".join('"%s"' % choice for choice in choices),
            value))


def check_weight(who, weight):
    """Raises unless `weight` is a scalar of the default graph, or None."""
    if weight is None:
        return
    if not tf.is_tensor(weight):
        raise TypeError(
            "{}: weight must be a scalar tensor, worked out from the "
            "micro-batch, or None; got {!r}.".format(who, weight))
    check_graph(who, "weight", weight)
    if not (weight.dtype.is_floating or weight.dtype.is_integer):
        raise TypeError(
            "{}: weight must be a number; got {} of {}.".format(
                who, weight.name, weight.dtype.base_dtype.name))
    if weight.shape.rank not in (0, None):
        raise ValueError(
            "{}: weight must be a scalar, the weight of the micro-batch; got "
            "{} of shape {}. Reduce it, for example with "
            "tf.reduce_sum.".format(who, weight.name, weight.shape))


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
    check_graph(who, "loss", loss)
    if not loss.dtype.is_floating:
        raise TypeError(
            "{}: loss must be of a float type; got {} of {}. Cast it before "
            "the gradient is taken.".format(who, loss.name, loss.dtype.name))
    if loss.shape.rank is not None and loss.shape.num_elements() != 1:
        raise ValueError(
            "{}: loss must be one number; got {} of shape {}. Reduce it, for "
            "example with tf.reduce_mean.".format(who, loss.name, loss.shape))


def _check_global_step(who, global_step):
    if global_step is None:
        return
    if not _is_variable(global_step):
        raise TypeError(
            "{}: global_step must be a variable or None; got {!r}. Use "
            "tf.train.get_or_create_global_step().".format(who, global_step))
    check_graph(who, "global_step", global_step)
    if not global_step.dtype.is_integer:
        raise TypeError(
            "{}: global_step must be of an integer type; got {} of {}.".format(
                who, global_step.name, global_step.dtype.base_dtype.name))
    if global_step.shape.num_elements() not in (1, None):
        raise ValueError(
            "{}: global_step must be one number; got {} of shape {}.".format(
                who, global_step.name, global_step.shape))


def checked_variables(who, var_list):
    """The variables of `var_list`, each of the graph and there once."""
    variables = [
        part for value in listed(who, "var_list", var_list)
        for part in (value if _is_partitioned(value) else [value])]
    _check_variables(who, variables)
    return variables


def _check_variables(who, variables):
    if not variables:
        raise ValueError(
            "{}: var_list holds no variable. Build the model first, or leave "
            "var_list out for all trainable variables.".format(who))
    seen = set()
    for variable in variables:
        if not _is_variable(variable):
            raise TypeError(
                "{}: var_list must hold variables; got {!r}.".format(
                    who, variable))
        check_graph(who, "var_list", variable)
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
    _check_variables(who, [variable for _, variable in grads_and_vars])
    for grad, variable in grads_and_vars:
        if grad is not None and not (hasattr(grad, "graph")
                                     and hasattr(grad, "dtype")):
            raise TypeError(
                "{}: the gradient of {} must be a tensor of the graph or None; "
                "got {!r}. Arrays that were fetched are fed, not built "
                "in.".format(who, variable.name, grad))
        if grad is not None:
            _check_gradient(who, grad, variable)


def _check_gradient(who, grad, variable):
    what = "the gradient of " + variable.name
    check_graph(who, what, grad)
    # TensorFlow 1.15 gives sparse gradients no shape.
    shape = getattr(grad, "shape", variable.shape)
    if not shape.is_compatible_with(variable.shape):
        raise ValueError(
            "{}: {} must have its shape, {}; got {} of shape {}.".format(
                who, what, variable.shape, grad.name, shape))
    if grad.dtype.is_floating != variable.dtype.is_floating or (
            grad.dtype.is_complex != variable.dtype.is_complex):
        raise TypeError(
            "{}: {} must be of a type like its own, {}; got {} of {}.".format(
                who, what, variable.dtype.base_dtype.name, grad.name,
                grad.dtype.name))


def listed(who, what, values):
    """`values` as a list; a single variable is a list of one."""
    if _is_variable(values):
        return [values]
    if not isinstance(values, collections.abc.Iterable) or isinstance(
            values, (str, tf.Tensor)):
        raise TypeError("{}: {} must be a list; got {!r}.".format(
            who, what, values))
    return list(values)


def _is_partitioned(value):
    # TensorFlow has no public name for the class.
    return hasattr(value, "as_tensor") and not _is_variable(value)


def _is_variable(value):
    return isinstance(value, VARIABLE) or replicas.is_distributed(value)


def check_always_run(who, what, *tensors, loops=0):
    """Raises ValueError for one in a branch, or in more than `loops` loops."""
    skipped = ancestry.first_sometimes_skipped(
        [tensor.op for tensor in tensors], loops)
    if skipped is not None:
        raise ValueError(
            "{}: {} must be outside of every tf.cond branch and tf.while_loop "
            "body; got {}, which is inside one: in some runs it has no value. "
            "Use what the branch or the loop returns.".format(
                who, what, skipped.name))


def check_graph(who, what, element):
    """Raises ValueError for a tensor, op or variable of another graph."""
    # Inside of a function's graph, variables are of the outermost one.
    with tf.init_scope():
        outermost = tf.get_default_graph()
    if element.graph not in (tf.get_default_graph(), outermost):
        raise ValueError(
            "{}: {} must be of the default graph; {} is of another. Build "
            "inside `with loss.graph.as_default():`.".format(
                who, what, element.name))
