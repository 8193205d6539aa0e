"""The update ops (batch-norm statistics) that go with a loss."""

import collections

import tensorflow.compat.v1 as tf

from tf1accum import ancestry
from tf1accum import arguments

_VARIABLES = ("VarHandleOp", "VariableV2", "Variable")
# Taking from these takes data away from whoever they are for.
_PIPELINES = ("IteratorGetNext", "QueueDequeueV2", "QueueDequeueManyV2",
              "QueueDequeueUpToV2")


def checked_or_reached(who, update_ops, losses, loops=0):
    """The ops to run with each micro-batch.

    Args:
      who: name of the function that the program called.
      update_ops: list of what the program wants run, or None for what the
        forward passes of `losses` reach.
      losses: list of scalar tensors.
      loops: number of loops that they may stand in.

    Raises:
      TypeError, ValueError: one of them cannot be run with each.
    """
    if update_ops is None:
        update_ops = collections.OrderedDict.fromkeys(
            op for loss in losses for op in _reached(who, loss))
    return _checked(who, arguments.listed(who, "update_ops", update_ops), loops)


def _reached(who, loss):
    """The members of `UPDATE_OPS` that the forward pass of `loss` reaches.

    An update op belongs to a loss when it moves a variable that the forward
    pass reads, or moves one by what the forward pass computes. It does not when
    it stands in a forward pass of its own: when, on its way from there, it
    meets weights that this one does not know, or any weights at all and then
    goes on to something else than the update.

    They come in the collection's order, each once.
    """
    forward = ancestry.ancestors([loss.op])
    weights = {variable.op for variable in tf.trainable_variables()}
    updates = collections.OrderedDict.fromkeys(
        _op(who, update)
        for update in tf.get_collection(tf.GraphKeys.UPDATE_OPS))
    return [op for op in updates if _belongs(op, forward, weights)]


def _checked(who, update_ops, loops):
    ops = [_op(who, update) for update in update_ops]
    skipped = ancestry.first_sometimes_skipped(ops, loops)
    if skipped is not None:
        raise ValueError(
            "{}: an update op must be of the default graph, outside of every "
            "tf.cond branch and tf.while_loop body; got {}, which is not: what "
            "depends on it would be silently skipped with it. Make the update "
            "outside, from what the branch returns, or pass update_ops without "
            "it.".format(who, skipped.name))
    return ops


def _belongs(update, forward, weights):
    own = ancestry.ancestors([update], stop=forward)
    inputs = {source.op for op in own for source in op.inputs}
    moved = {source.op for op in own if _moves_variable(op)
             for source in op.inputs if source.op.type in _VARIABLES}
    touched = {op for op in inputs & forward
               if op in weights or _reads_only(op, weights)
               or (op.inputs and not _reads_only(op))}
    if not touched and not moved & forward:
        return False
    if own & weights or any(op.type in _PIPELINES for op in own):
        return False
    beyond = _descendants(own, forward)
    return not (beyond and any(
        source.op in weights or _reads_only(source.op, weights)
        for op in own | beyond for source in op.inputs))


def _descendants(own, forward):
    """What outside of `own` is computed from what `own` computes."""
    queue = collections.deque(op for op in own if not _moves_variable(op))
    seen = set(queue)
    while queue:
        op = queue.popleft()
        if op.type in _VARIABLES or _reads_only(op):
            continue
        for output in op.outputs:
            # Summaries are strings, and all merge into one.
            for consumer in (output.consumers()
                             if output.dtype.is_floating else ()):
                if not (consumer in seen or consumer in forward
                        or _moves_variable(consumer)):
                    seen.add(consumer)
                    queue.append(consumer)
    return seen - own


def _moves_variable(op):
    return (op.type.startswith(("Assign", "Scatter", "ResourceScatter"))
            and any(source.op.type in _VARIABLES for source in op.inputs))


def _reads_only(op, variables=None):
    """Whether `op` reads a variable, one of `variables` if given."""
    return op.type in ("ReadVariableOp", "Identity") and any(
        source.op in variables if variables is not None
        else source.op.type in _VARIABLES for source in op.inputs)


def _op(who, update):
    op = getattr(update, "op", update)
    if not isinstance(op, tf.Operation):
        raise TypeError(
            "{}: update_ops must hold ops or tensors; got {!r}.".format(
                who, update))
    return op
