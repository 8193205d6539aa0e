"""Gradients of one micro-batch."""

import warnings

import tensorflow.compat.v1 as tf

# Casting a gradient up costs a pass over memory that scaling can share; and a
# loss scaled down underflows sooner in these.
_NARROW = (tf.float16, tf.bfloat16)


def compute(optimizer, loss, variables, scale):
    """Gradients of `scale * loss`, scaled where it costs least.

    The gradients of TensorFlow's own `compute_gradients` are linear in the
    loss: scaling one number there saves two passes over memory for each
    gradient. An optimizer that overrides it (to clip, to decay weights, to
    scale the loss) may not be linear, and what it returns is scaled instead.

    Args:
      optimizer: object with `compute_gradients`.
      loss: scalar tensor.
      variables: list of variables.
      scale: Python float.

    Returns:
      The `grads_and_vars` list, gradients of the shapes of the variables, in
      the order in which the optimizer returns them, and the scale that is
      still to be applied to them, a Python float.
    """
    method = getattr(type(optimizer), "compute_gradients", None)
    if method is not tf.train.Optimizer.compute_gradients:
        return list(optimizer.compute_gradients(loss, variables)), scale
    narrow = any(element.dtype.base_dtype in _NARROW
                 for element in [loss] + variables)
    inside = 1. if narrow else scale
    # Nothing else puts the ops of a gradient beside those of its forward op:
    # the caller's device scope, like every other, is not in force here.
    pairs = optimizer.compute_gradients(
        loss if inside == 1. else loss * inside, variables,
        colocate_gradients_with_ops=True)
    return list(pairs), scale / inside


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
        for tensor in op.inputs if op.type != "StopGradient" else ():
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
