"""Gradients of one micro-batch, before they are added up."""

import collections
import warnings

import tensorflow.compat.v1 as tf

from tf1accum import ancestry
from tf1accum import arguments

# Casting a gradient up costs a pass over memory that scaling can share; and a
# loss scaled down underflows sooner in these.
_NARROW = (tf.float16, tf.bfloat16)
_FUNCTION_CALLS = (
    "Case", "If", "PartitionedCall", "StatefulPartitionedCall",
    "StatelessCase", "StatelessIf", "StatelessWhile", "SymbolicGradient",
    "While")
_WITHOUT_GRADIENT = ("Ceil", "Floor", "Rint", "Round", "StopGradient")


def compute(optimizer, loss, variables, scale):
    """Gradients of `scale * loss`, scaled where it costs least.

    The gradients of TensorFlow's own `compute_gradients` are linear in the
    loss: scaling one number there saves two passes over memory for each
    gradient. An optimizer that overrides it (to clip, to decay weights, to
    scale the loss) may not be linear, nor a model with gradients of its own,
    and what comes out is scaled instead.

    Args:
      optimizer: object with `compute_gradients`.
      loss: scalar tensor.
      variables: list of variables.
      scale: Python float or scalar tensor.

    Returns:
      The `grads_and_vars` list, gradients of the shapes of the variables, in
      the order in which the optimizer returns them, and the scale that is
      still to be applied to them.
    """
    if loss.shape.rank != 0:
        loss = tf.reshape(loss, [])
    method = getattr(optimizer.compute_gradients, "__func__", None)
    if method is not tf.train.Optimizer.compute_gradients:
        return list(optimizer.compute_gradients(loss, variables)), scale
    outside = not _can_scale(loss)
    # Nothing else puts the ops of a gradient beside those of its forward op:
    # the caller's device scope, like every other, is not in force here.
    pairs = optimizer.compute_gradients(
        loss, variables, colocate_gradients_with_ops=True,
        grad_loss=None if outside else scaled(
            tf.ones([], loss.dtype), loss.dtype, scale))
    return list(pairs), scale if outside else 1.


def wide_dtype(dtype):
    """The type to add values of `dtype` up in.

    Many small half-precision terms stop adding up: 4,096 times 0.001 is 4.
    """
    return tf.float32 if dtype in _NARROW else dtype


def scaled(values, dtype, scale):
    """`values * scale` in `dtype`.

    Args:
      values: tensor.
      dtype: type of the result.
      scale: Python float or scalar tensor.
    """
    values = tf.cast(values, dtype.base_dtype)
    if tf.is_tensor(scale):
        return values * tf.cast(scale, values.dtype)
    # Each multiplication is two passes over memory.
    return values if scale == 1. else values * scale


def _can_scale(loss):
    """Whether scaling the loss surely is scaling its gradients.

    It is not past gradients that a program writes itself, to clip them say; nor
    in half precision, that overflows or loses bits. What a function holds
    cannot be seen from here.
    """
    return not any(
        op.type in _FUNCTION_CALLS or _has_own_gradient(op)
        or any(output.dtype.base_dtype in _NARROW for output in op.outputs)
        for op in ancestry.ancestors([loss.op]))


def _has_own_gradient(op):
    try:
        return bool(op.get_attr("_gradient_op_type"))
    except ValueError:
        return False


def finite(grads_and_vars, loss, weight):
    """What of a micro-batch is finite.

    Costs a pass over each gradient.

    Args:
      grads_and_vars: list of (gradient, variable) pairs.
      loss: scalar tensor, or None.
      weight: scalar tensor, or None.

    Returns:
      Names, a list of strings, and a bool tensor of as many.
    """
    values = [(variable.name, getattr(grad, "values", grad))
              for grad, variable in grads_and_vars]
    if loss is not None:
        values.append(("the loss " + loss.name, loss))
    if weight is not None:
        values.append(
            ("the weight " + weight.name, tf.cast(weight, tf.float64)))
    return [name for name, _ in values], tf.stack(
        [tf.reduce_all(tf.math.is_finite(value)) for _, value in values])


def average_tower_gradients(tower_grads_and_vars, name="tower_mean"):
    """The mean over towers of their gradients: the mean, not the sum.

        mean = (g_1 + ... + g_t) / t

    The one thing to know: a tower without a gradient for a variable counts as
    one with zeros, as long as another has one.

    Args:
      tower_grads_and_vars: list of the `grads_and_vars` lists of the towers,
        for the same variables in any order: tensors of their shapes,
        `IndexedSlices`, or None.
      name: scope of what is added.

    Returns:
      One such list, in the order of the first tower. A gradient that is
      `IndexedSlices` in every tower that has one stays so: the rows of all of
      them, one after the other.

    Raises:
      TypeError, ValueError: the towers are none, hold something else than
        pairs, or are not for the same variables.
    """
    who = "tf1accum.average_tower_gradients"
    towers = [list(pairs) for pairs in tower_grads_and_vars]
    if not towers:
        raise ValueError(
            "{}: needs the gradients of at least one tower; got none.".format(
                who))
    for pairs in towers:
        arguments.check_pairs(who, pairs)
    grads = collections.OrderedDict(
        (variable.op.name, []) for _, variable in towers[0])
    for number, pairs in enumerate(towers):
        names = [variable.op.name for _, variable in pairs]
        if set(names) != set(grads):
            raise ValueError(
                "{}: all towers must be for the same variables; tower {} "
                "differs from tower 0 in {}. Share variables, for example by "
                "reuse, and give each tower the same var_list.".format(
                    who, number, ", ".join(sorted(set(names) ^ set(grads)))))
        for grad, variable in pairs:
            if grad is not None:
                grads[variable.op.name].append(grad)
    with tf.name_scope(name):
        return [(_mean(grads[variable.op.name], variable, len(towers)),
                 variable)
                for _, variable in towers[0]]


def _mean(grads, variable, number):
    if not grads:
        return None
    # As accumulators do, not to lose the small terms of half precision.
    dtype = grads[0].dtype
    wide = wide_dtype(dtype.base_dtype)
    if not all(isinstance(grad, tf.IndexedSlices) for grad in grads):
        return tf.cast(tf.add_n([
            dense(grad, wide, variable.shape.as_list())
            for grad in grads]) / number, dtype)
    values = tf.concat([tf.cast(grad.values, wide) for grad in grads], 0)
    indices = [tf.cast(grad.indices, tf.int64) for grad in grads]
    return tf.IndexedSlices(
        tf.cast(values / number, dtype), tf.concat(indices, 0),
        grads[0].dense_shape)


def dense(grad, dtype, shape):
    """`grad` as a tensor of `dtype`; rows of one index are added up in it.

    Args:
      grad: tensor, or `IndexedSlices`, that may not know their dense shape.
      dtype: type of the result.
      shape: list or tensor of the sizes of the variable.
    """
    if not isinstance(grad, tf.IndexedSlices):
        return tf.cast(grad, dtype)
    return tf.math.unsorted_segment_sum(
        tf.cast(grad.values, dtype), grad.indices, shape[0])


def is_rows(grad):
    """Whether `grad` is sparse: rows of its variable, `IndexedSlices`."""
    return isinstance(grad, tf.IndexedSlices)


def drop_none(who, grads_and_vars):
    """The pairs that have a gradient; warns of those that do not.

    Raises:
      ValueError: when no pair has one.
    """
    check_some(who, grads_and_vars)
    without = [variable.name for grad, variable in grads_and_vars
               if grad is None]
    if without:
        # Four frames up is the line of the program that called the builder.
        warnings.warn(
            "{}: the loss has no gradient for {}; left as they are. Leave them "
            "out of var_list to silence this.".format(
                who, ", ".join(without)), stacklevel=4)
    return [pair for pair in grads_and_vars if pair[0] is not None]


def check_some(who, grads_and_vars):
    """Raises ValueError when every gradient is None."""
    if all(grad is None for grad, _ in grads_and_vars):
        _refuse_without_gradient(
            who, [variable for _, variable in grads_and_vars])


def check_reached(who, loss, variables):
    """Raises ValueError when no path of floats leads to `loss`.

    Known before any gradient op is added, unlike what gradient functions
    answer.
    """
    wanted = {variable.op.name for variable in variables}
    seen, stack = {loss.op.name}, [loss.op]
    while stack:
        op = stack.pop()
        if op.name in wanted:
            return
        for tensor in (op.inputs if op.type not in _WITHOUT_GRADIENT
                       else ()):
            if _carries_gradient(tensor) and tensor.op.name not in seen:
                seen.add(tensor.op.name)
                stack.append(tensor.op)
    _refuse_without_gradient(who, variables)


def _refuse_without_gradient(who, variables):
    raise ValueError(
        "{}: at least one variable must have a gradient; the loss has none for "
        "{}. Pass the variables that the loss is computed from, by "
        "differentiable ops.".format(
            who, ", ".join(variable.name for variable in variables)))


def _carries_gradient(tensor):
    dtype = tensor.dtype.base_dtype
    return (dtype.is_floating or dtype.is_complex
            or dtype in (tf.resource, tf.variant))
