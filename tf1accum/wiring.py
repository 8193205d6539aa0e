"""One window, wired: accumulate, apply and reset in the order that is right."""

import collections
import contextlib

import tensorflow.compat.v1 as tf

from tf1accum import applying
from tf1accum import gate
from tf1accum import gradients
from tf1accum import mutex
from tf1accum import recorder
from tf1accum import recovery
from tf1accum import replicas
from tf1accum import scopes
from tf1accum import train_ops
from tf1accum import workers
from tf1accum.window import Window

_OP_NAMES = ("accumulate", "apply", "reset", "apply_and_reset", "initializer",
             "step", "mean", "transform", "after_apply", "read", "record",
             "summarize")


def build_window(who, compute, optimizer, loss, update_ops, settings,
                 every_k=False, finish=None):
    """Builds an `AccumulationOps`; every argument has been checked.

    Args:
      who: name of the function that the program called.
      compute: function of the scale that gradients are to come in with. Returns
        `grads_and_vars` and the scale that is still to be applied to them.
      optimizer: object with `apply_gradients`.
      loss: scalar tensor to average, or None.
      update_ops: list of ops.
      settings: `arguments.Settings`.
      every_k: whether to build `step`, the op that applies at every k-th run.
        It may be in a branch or a loop: what runs with the gradients is built
        there, and everything else outside.
      finish: function that may change the `AccumulationOps` before it is
        remembered, called where the caller stands, or None.

    Returns:
      An `AccumulationOps`, the same in all replicas: its ops run them all.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(tf.name_scope(None))
        box = stack.enter_context(scopes.new_box(settings.name))
        scope = replicas.own_scope(box)
        in_control_flow = every_k and scopes.in_control_flow(
            scope + "step/")
        stack.enter_context(scopes.root_scope(
            in_control_flow, settings.device))
        stack.enter_context(tf.name_scope(box))
        _reserve_op_names()
        stack.enter_context(tf.name_scope(scope))
        made = recorder.Recorder()
        with made.record(), tf.name_scope("scale"):
            loss_scale = settings.loss_scale
        with gradients.scope_of(optimizer, scope), made.record():
            grads_and_vars, scale = compute(settings.scale(loss_scale))
        if settings.sparse == "rows":
            workers.check_no_rows(who, optimizer, grads_and_vars)
        grads_and_vars = gradients.drop_none(who, grads_and_vars)
        with _outside(in_control_flow, box, settings), tf.name_scope(box):
            if in_control_flow:
                _reserve_op_names()
            with tf.device(settings.worker_device):
                window = Window(grads_and_vars, loss, settings)
        application = applying.Application(
            who, window, optimizer, settings,
            lambda inside: _only_reads(box, inside, window, settings))
        lock = None
        if every_k:
            with _outside(in_control_flow, box, settings), tf.name_scope(box):
                lock = replicas.together(lambda: mutex.Mutex(box + "mutex"))
        accumulate, step = _build_accumulate_and_step(
            scope, window, application, update_ops, lock,
            lambda after=(): _build_terms(
                scope, window, scale, loss_scale, settings, after))
        with _outside(in_control_flow, scope, settings):
            # An apply that waits for other workers can be built only once.
            apply, apply_and_reset = (None, None) if (
                every_k and workers.wait_for_each_other(optimizer)) else (
                    _build_apply_and_reset(scope, window, application, lock))
            reset = _build_reset(scope, window, lock)
            created = made.variables + application.made
            window_variables = replicas.together(_once_each, window.variables)
            # What a worker shares with others is not its own to start anew.
            own = window_variables + (
                created if settings.worker_device is None else [])
            initializer = replicas.together(lambda: scopes.named_group(
                box, "initializer", lambda: [
                    part.initializer for variable in own
                    for part in replicas.parts(variable)]))
            ops = replicas.first_of(train_ops.AccumulationOps(
                name=box[:-1], graph=tf.get_default_graph(),
                reduction=settings.reduction,
                accumulate=None if in_control_flow else _in_all(
                    box, "accumulate", accumulate),
                apply=_in_all(box, "apply", apply),
                reset=_in_all(box, "reset", reset),
                apply_and_reset=_in_all(
                    box, "apply_and_reset", apply_and_reset),
                initializer=initializer, step=_in_all(box, "step", step),
                variables=window.model_variables,
                update_ops=replicas.together(_once_each, update_ops),
                **_read_all(scope, window, settings.k)))
            state = replicas.together(lambda: applying.state(
                optimizer, created, application.made_for_model + ops.variables))
    if finish is not None:
        finish(ops)
    replicas.together(lambda: recovery.remember(ops, [
        replicas.parts(variable)[0].op
        for variable in window_variables + state]))
    return ops


def _in_all(box, op_name, op):
    """One op in `box` that runs the `op` of each replica."""
    if op is None or not replicas.inside():
        return op
    return replicas.together(
        lambda ops: scopes.named_group(box, op_name, lambda: ops), op)


def _once_each(lists):
    """The elements of all `lists`, in order, each once."""
    return list(collections.OrderedDict.fromkeys(
        element for elements in lists for element in elements))


def _outside(in_control_flow, scope, settings):
    if not in_control_flow:
        return contextlib.ExitStack()
    return scopes.outside_of_control_flow(scope, settings.device)


def _reserve_op_names():
    # A model's variable of that name gives way, not the op.
    for op_name in _OP_NAMES:
        tf.get_default_graph().unique_name(op_name)


def _build_accumulate_and_step(scope, window, application, update_ops, lock,
                               build_terms):
    """The op that adds a micro-batch, and the one that then applies at k."""
    if lock is None:
        return scopes.named_group(
            scope, "accumulate", lambda: update_ops + build_terms()), None
    with tf.name_scope(scope + "accumulate/"):
        # From the first term to the reset, one run at a time: a term that is
        # added while another run applies would be lost in its reset.
        held = _take(lock, window.needed)
        added = tf.group(*build_terms(after=[held]), name="added")
    accumulate = scopes.named_group(
        scope, "accumulate", lambda: update_ops + [_give_back(held, [added])])

    def close_window():
        with tf.control_dependencies([added]):
            full = window.is_full()
            applied = application.build(scope + "step/", tf.logical_and(
                full, window.holds_something(), name="applies"))
        with tf.control_dependencies([applied]), tf.name_scope("reset"):
            closed = gate.run_if(
                full, lambda _: tf.group(*window.reset(), name="emptied"))
        return update_ops + [_give_back(held, [closed])]

    return accumulate, scopes.named_group(scope, "step", close_window)


def _build_apply_and_reset(scope, window, application, lock):
    """The op that applies, and the one that then resets."""
    with tf.name_scope(scope + "apply/"):
        # Where there is a lock, it is held from the first read to the last
        # write, as by the op that applies at every k-th run.
        held = [] if lock is None else [_take(lock, [])]
        with tf.control_dependencies(held):
            applied = application.build(scope, window.holds_something())

    def reset_applied():
        with tf.name_scope("reset"), tf.control_dependencies([applied]):
            return window.reset()

    # Grouped side by side, reset would overtake apply.
    return (scopes.named_group(
        scope, "apply", lambda: _let_go(held, [applied])),
            scopes.named_group(
                scope, "apply_and_reset",
                lambda: _let_go(held, reset_applied())))


def _build_reset(scope, window, lock):
    """The op that empties the window."""
    def reset():
        held = [] if lock is None else [_take(lock, [])]
        with tf.control_dependencies(held):
            return _let_go(held, window.reset())

    return scopes.named_group(scope, "reset", reset)


def _let_go(held, ops):
    """`ops`, and then the lock that is held, if one is."""
    return [_give_back(held[0], ops)] if held else ops


def _take(lock, after):
    # One for all replicas: of two runs, each would wait for the other's.
    return replicas.together(
        lambda each: lock.take(after=sum(each, [])), after)


def _give_back(held, after):
    return replicas.together(
        lambda each: mutex.give_back(held, after=sum(each, [])), after)


def _build_terms(scope, window, scale, loss_scale, settings, after):
    """Ops that add one micro-batch, if it is one to add."""
    if settings.nonfinite == "propagate":
        return window.add(scale, loss_scale, after=after)
    with tf.name_scope("finite"):
        names, flags = window.finite()
        good = tf.reduce_all(flags, axis=0, name="all")
        if settings.nonfinite == "skip":
            check = []
        else:
            check = [tf.raw_ops.Assert(
                condition=good, summarize=len(names), name="check", data=[
                    tf.constant(
                        "tf1accum: the micro-batch was not added to the window "
                        "{}, since these are not all finite:".format(
                            scope[:-1]), name="message"),
                    tf.gather_nd(
                        tf.constant(names, name="names"),
                        tf.raw_ops.Where(
                            condition=tf.logical_not(flags, name="not_finite"),
                            name="places"), name="which")])]
    return window.add(scale, loss_scale, None if check else good,
                      check + list(after))


def _only_reads(box, inside, window, settings):
    """The record of the window where it is read inside of an apply."""
    return train_ops.AccumulationOps(
        name=box[:-1], graph=tf.get_default_graph(),
        reduction=settings.reduction, accumulate=None, apply=None, reset=None,
        apply_and_reset=None, initializer=None, step=None,
        variables=window.model_variables, update_ops=[],
        **_read_all(inside, window, settings.k))


def _read_all(scope, window, k):
    """What a program may look at, each under a name of its own."""
    with tf.name_scope(scope + "read/"):
        return dict(
            k=tf.identity(k, name="k") if tf.is_tensor(k) else k,
            average_loss=window.read_average_loss("average_loss"),
            count=window.read_count(), weight=window.read_weight(),
            skipped=window.read_skipped(),
            accumulators=window.read_accumulators())
