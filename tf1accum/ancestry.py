"""What an op runs: the ops that lead to it."""

import collections

import tensorflow.compat.v1 as tf

_LOOP_STARTS = ("Enter", "RefEnter")
_SWITCHES = ("Switch", "RefSwitch")
_MERGES = ("Merge", "RefMerge")
_LOOP_ENDS = ("Exit", "RefExit")


def ancestors(ops, stop=()):
    """All ops that a run of `ops` runs, themselves included, but `stop`."""
    seen = {op for op in ops if op not in stop}
    queue = collections.deque(seen)
    while queue:
        for source in _sources(queue.popleft()):
            if source not in seen and source not in stop:
                seen.add(source)
                queue.append(source)
    return seen


def first_sometimes_skipped(ops, loops=0):
    """The first of `ops` that some runs that ask for it skip, or None.

    As inside a `tf.cond` branch or a `tf.while_loop` body: there, what depends
    on an op is skipped with it, or has no value of its own.

    Args:
      ops: list of ops.
      loops: number of loops that the caller itself stands in.
    """
    # One walk for all; which of them it is costs a walk each.
    return None if _are_always_run(ops, loops) else next(
        op for op in ops if not _are_always_run([op], loops))


def _are_always_run(ops, loops):
    """Whether each way back from `ops` leaves as often as it enters.

    It leaves a branch by a Merge, a loop by an Exit; it enters one by a Switch,
    the other by an Enter.
    """
    with tf.init_scope():
        outermost = tf.get_default_graph()
    # What a function's graph depends on outside of it runs with its call.
    if any(op.graph not in (tf.get_default_graph(), outermost) for op in ops):
        return False
    seen = {(op, loops) for op in ops}
    queue = collections.deque(seen)
    while queue:
        op, left = queue.popleft()
        sources = _sources(op)
        if op.type in _LOOP_STARTS or (
                op.type in _SWITCHES and not _is_of_loop(op)):
            left -= 1
        elif op.type in _LOOP_ENDS or (
                op.type in _MERGES and not _is_of_loop(op)):
            left += 1
        if left < 0:
            return False
        for source in sources:
            if (source, left) not in seen:
                seen.add((source, left))
                queue.append((source, left))
    return True


def _is_of_loop(op):
    return any(source.type in _LOOP_STARTS + ("LoopCond",)
               for source in _sources(op))


def _sources(op):
    return [tensor.op for tensor in op.inputs] + list(op.control_inputs)
