"""The update ops (batch-norm statistics) that go with a loss."""

import collections

import tensorflow.compat.v1 as tf

_VARIABLES = ("VarHandleOp", "VariableV2", "Variable")
_LOOP_STARTS = ("Enter", "RefEnter")
_BRANCHES = ("Switch", "RefSwitch") + _LOOP_STARTS
_ENDS = ("Merge", "RefMerge", "Exit", "RefExit")


def reached_update_ops(loss):
    """The members of `UPDATE_OPS` that the forward pass of `loss` reaches.

    An update op belongs to a loss when what it reads is computed on the way to
    that loss, or is a variable that it moves itself, or is worked out from
    those for its sake alone. What another model in the graph computes from the
    same input, on the way to its own loss, is that model's.

    Args:
      loss: scalar tensor.

    Returns:
      A list of ops, in the collection's order, each once.
    """
    forward = _ancestors([loss.op])
    foreign = {variable.op for variable in tf.trainable_variables()} - forward
    updates = collections.OrderedDict.fromkeys(
        _op(update) for update in tf.get_collection(tf.GraphKeys.UPDATE_OPS))
    return [op for op in updates if _belongs(op, forward, foreign)]


def checked_ops(who, update_ops):
    """The ops of `update_ops`, each of which the main graph can run.

    Args:
      who: name of the function that the program called.
      update_ops: list of ops, tensors, or what `assign` returns.

    Raises:
      TypeError: for anything else.
      ValueError: for an op inside a branch or a loop.
    """
    for update in update_ops:
        op = _op(update)
        if not isinstance(op, tf.Operation):
            raise TypeError(
                "{}: update_ops must hold ops or tensors; got {!r}.".format(
                    who, update))
        if op.graph is not tf.get_default_graph() or _in_control_flow(op):
            raise ValueError(
                "{}: an update op must be outside of every tf.cond branch and "
                "tf.while_loop body; got {}, which is inside one: what depends "
                "on it is silently skipped with it. Make the update outside, "
                "from what the branch returns, or pass update_ops without "
                "it.".format(who, op.name))
    return [_op(update) for update in update_ops]


def _belongs(update, forward, foreign):
    own = _ancestors([update], stop=forward)
    inputs = {source.op for op in own for source in op.inputs}
    moved = {source.op for op in own if _moves_variable(op)
             for source in op.inputs if source.op.type in _VARIABLES}
    # A source of its own (a feed, a queue, an iterator, somebody's weights)
    # shows a forward pass of its own.
    sources = {op for op in own if not op.inputs and op.type != "Const"}
    if not sources - {update} <= moved:
        return False
    touches = any(op in forward and op.type != "Const" for op in inputs)
    return touches and not foreign & _ancestors(
        _descendants(own, forward), stop=forward)


def _descendants(own, forward):
    """What is computed from what `own` computes from `forward`."""
    queue = collections.deque(
        op for op in own if not _moves_variable(op)
        and any(source.op in forward and source.op.type not in _VARIABLES
                for source in op.inputs))
    seen = set(queue)
    while queue:
        for output in queue.popleft().outputs:
            # Summaries are strings, and all merge into one.
            for op in output.consumers() if output.dtype.is_floating else ():
                if not (op in seen or op in forward
                        or _moves_variable(op)):
                    seen.add(op)
                    queue.append(op)
    return seen


def _ancestors(ops, stop=()):
    """All ops that a run of `ops` runs, themselves included, but `stop`."""
    seen = {op for op in ops if op not in stop}
    queue = collections.deque(seen)
    while queue:
        for source in _sources(queue.popleft()):
            if source not in seen and source not in stop:
                seen.add(source)
                queue.append(source)
    return seen


def _in_control_flow(op):
    """Whether some runs skip `op`: a branch leads to it, and no merge back."""
    seen, queue = {op}, collections.deque([op])
    while queue:
        op = queue.popleft()
        if op.type in _BRANCHES:
            return True
        in_loop = any(source.type in _LOOP_STARTS for source in _sources(op))
        if op.type not in _ENDS or (op.type.endswith("Merge") and in_loop):
            for source in _sources(op):
                if source not in seen:
                    seen.add(source)
                    queue.append(source)
    return False


def _sources(op):
    return [tensor.op for tensor in op.inputs] + list(op.control_inputs)


def _moves_variable(op):
    return (op.type.startswith(("Assign", "Scatter", "ResourceScatter"))
            and any(source.op.type in _VARIABLES for source in op.inputs))


def _op(update):
    return getattr(update, "op", update)
