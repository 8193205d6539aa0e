"""Applying: gradients handed to an optimizer, once a window."""

import tensorflow.compat.v1 as tf

from tf1accum import scopes


def apply_gradients(who, optimizer, grads_and_vars, global_step, after=()):
    """Hands `grads_and_vars` to the optimizer, and counts it.

    The global step is not left to the optimizer: some ignore it, and some move
    it without being asked to.

    Args:
      who: name of the function that the program called.
      optimizer: object with `apply_gradients`.
      grads_and_vars: list of (gradient, variable) pairs.
      global_step: integer variable to move by one when all is applied, or None.
      after: list of ops that all this is ordered after.

    Returns:
      The op, and the list of the variables that the optimizer made.
    """
    with scopes.created_variables(after) as created:
        op = optimizer.apply_gradients(grads_and_vars)
    if op is None:
        raise TypeError(
            "{}: apply_gradients must return the op that applies; {!r} "
            "returned None.".format(who, optimizer))
    op = tf.group(op)
    if global_step is not None:
        with tf.control_dependencies([op]):
            op = global_step.assign_add(1, name="global_step")
    return op, created


def state(optimizer, created, models_own):
    """The optimizer's state: what was made for it, and what it knows.

    Args:
      optimizer: object with `apply_gradients`.
      created: list of the variables that were made for it.
      models_own: list of variables that are the model's, should it list them.
    """
    names = {variable.op.name
             for variable in models_own + tf.trainable_variables()}
    return [variable for variable in created + _known(optimizer)
            if variable.op.name not in names]


def _known(optimizer):
    try:
        variables = getattr(optimizer, "variables", [])
        known = list(variables() if callable(variables) else variables)
    except AttributeError:
        # A wrapper of tf.contrib that has no slots of its own.
        known = []
    for inner in getattr(optimizer, "__dict__", {}).values():
        if hasattr(inner, "apply_gradients"):
            known += _known(inner)
    return known
