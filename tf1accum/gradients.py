"""Gradients of one micro-batch, before they are added up."""

import collections
import warnings

import tensorflow.compat.v1 as tf

from tf1accum import ancestry
from tf1accum import arguments
from tf1accum import scopes

# Casting a gradient up costs a pass over memory that scaling can share; and a
# loss scaled down underflows sooner in these.
_NARROW = (tf.float16, tf.bfloat16)
_FUNCTION_CALLS = (
    "Case", "If", "PartitionedCall", "StatefulPartitionedCall",
    "StatelessCase", "StatelessIf", "StatelessWhile", "SymbolicGradient",
    "While")
_WITHOUT_GRADIENT = ("Ceil", "Floor", "Rint", "Round", "StopGradient")


def compute(optimizer, loss, variables, scale, colocate=True):
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
      colocate: whether the ops of a gradient are to be beside those of its
        forward op, or where the caller stands: lookups are done on parameter
        servers, and their rows would go there and back with each micro-batch.

    Returns:
      The `grads_and_vars` list, gradients of the shapes of the variables, in
      the order in which the optimizer returns them, and the scale that is
      still to be applied to them.
    """
    if loss.shape.rank != 0:
        loss = tf.reshape(loss, [], name="scale/scalar_loss")
    if _computes_its_own(optimizer):
        return list(optimizer.compute_gradients(loss, variables)), scale
    outside = not _can_scale(loss)
    # Nothing else puts the ops of a gradient beside those of its forward op:
    # the caller's device scope, like every other, is not in force here.
    pairs = optimizer.compute_gradients(
        loss, variables, colocate_gradients_with_ops=colocate,
        grad_loss=None if outside else factor(
            scale, loss.dtype, "scale/of_loss"))
    return list(pairs), scale if outside else 1.


def scope_of(optimizer, box):
    """The name scope for `compute` to be called in, in the scope `box`.

    TensorFlow's own `compute_gradients` opens one; what others add is not to
    lie about.
    """
    return tf.name_scope(box + "gradients/" if _computes_its_own(optimizer)
                         else box)


def _computes_its_own(optimizer):
    method = getattr(
        getattr(optimizer, "compute_gradients", None), "__func__", None)
    return method is not tf.train.Optimizer.compute_gradients


def wide_dtype(dtype):
    """The type to add values of `dtype` up in.

    Many small half-precision terms stop adding up: 4,096 times 0.001 is 4.
    """
    return tf.float32 if dtype in _NARROW else dtype


def factor(scale, dtype, name):
    """`scale` as what tensors of `dtype` are multiplied by, None for by 1.

    Args:
      scale: Python float or scalar tensor.
      dtype: type of the tensors.
      name: name of what is returned.
    """
    if tf.is_tensor(scale):
        return tf.cast(scale, dtype, name=name)
    # Each multiplication is two passes over memory.
    return None if scale == 1. else tf.constant(scale, dtype, name=name)


def scaled(values, dtype, by):
    """`values` in `dtype`, times `by`, a `factor` of that type."""
    values = tf.cast(values, dtype, name="cast")
    return values if by is None else tf.multiply(values, by, name="scaled")


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


def average_tower_gradients(tower_grads_and_vars, name="accumulation"):
    """The mean over towers of their gradients: the mean, not the sum.

        mean = (g_1 + ... + g_t) / t

    Towers are copies of a model that share its variables, one on each device,
    and there is one window of their mean:

        for device in ["/gpu:0", "/gpu:1"]:
            with tf.device(device), tf.variable_scope(
                    "model", reuse=tf.AUTO_REUSE):
                towers.append(opt.compute_gradients(tower_loss()))
        ops = tf1accum.build_from_gradients(
            tf1accum.average_tower_gradients(towers), optimizer=opt, k=k)

    The one thing to know: a tower without a gradient for a variable counts as
    one with zeros, as long as another has one.

    Args:
      tower_grads_and_vars: list of the `grads_and_vars` lists of the towers,
        for the same variables in any order: tensors of their shapes,
        `IndexedSlices`, or None.
      name: scope of all that is added: the name of the window to be built
        next, which shares it.

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
    means = []
    with tf.name_scope(None), tf.name_scope(scopes.free_box(name)), \
            tf.name_scope(scopes.TOWER_MEAN):
        for _, variable in towers[0]:
            with tf.name_scope(variable.op.name):
                means.append((_mean(
                    grads[variable.op.name], variable, len(towers)), variable))
    return means


def _mean(grads, variable, number):
    if not grads:
        return None
    # As accumulators do, not to lose the small terms of half precision.
    dtype = grads[0].dtype
    wide = wide_dtype(dtype.base_dtype)
    sparse = all(isinstance(grad, tf.IndexedSlices) for grad in grads)
    parts = []
    for tower, grad in enumerate(grads):
        with tf.name_scope("tower{}".format(tower)):
            parts.append(
                (tf.cast(grad.values, wide, name="cast"),
                 tf.cast(grad.indices, tf.int64, name="indices"))
                if sparse else dense(grad, wide, variable.shape.as_list()))
    if not sparse:
        return tf.cast(tf.realdiv(
            tf.add_n(parts, name="sum"), number, name="mean"), dtype,
                       name="cast")
    values, indices = zip(*parts)
    return tf.IndexedSlices(
        tf.cast(tf.realdiv(tf.concat(values, 0, name="values"), number,
                          name="mean"), dtype, name="cast"),
        tf.concat(indices, 0, name="indices"), grads[0].dense_shape)


def dense(grad, dtype, shape):
    """`grad` as a tensor of `dtype`; rows of one index are added up in it.

    Args:
      grad: tensor, or `IndexedSlices`, that may not know their dense shape.
      dtype: type of the result.
      shape: list or tensor of the sizes of the variable.
    """
    if not isinstance(grad, tf.IndexedSlices):
        return tf.cast(grad, dtype, name="cast")
    rows = (shape[0] if isinstance(shape, list)
            else tf.gather(shape, 0, name="rows"))
    return tf.math.unsorted_segment_sum(
        tf.cast(grad.values, dtype, name="cast"), grad.indices, rows,
        name="dense")


def parts(grad):
    """The tensors of `grad`, by name: its values, and what says which rows."""
    if isinstance(grad, tf.IndexedSlices):
        return {"values": grad.values, "indices": grad.indices,
                "dense_shape": grad.dense_shape}
    return {"values": grad, "indices": None, "dense_shape": None}


def from_parts(values, indices, dense_shape):
    """What `parts` took apart."""
    if indices is None:
        return values
    return tf.IndexedSlices(values, indices, dense_shape)


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
