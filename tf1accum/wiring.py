"""One window, wired: accumulate, apply and reset in the order that is right."""

import contextlib

import tensorflow.compat.v1 as tf

from tf1accum import accumulators
from tf1accum import applying
from tf1accum import gate
from tf1accum import gradients
from tf1accum import mutex
from tf1accum import recorder
from tf1accum import recovery
from tf1accum import scopes
from tf1accum import train_ops
from tf1accum.window import Window

_OP_NAMES = ("accumulate", "apply", "reset", "apply_and_reset", "initializer",
             "step", "mean", "transform", "after_apply", "read", "record")


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
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(tf.name_scope(None))
        scope = stack.enter_context(scopes.new_box(settings.name))
        in_control_flow = every_k and scopes.in_control_flow(scope)
        stack.enter_context(scopes.root_scope(in_control_flow))
        stack.enter_context(tf.name_scope(scope))
        _reserve_op_names()
        made = recorder.Recorder()
        with made.record(), tf.name_scope("scale"):
            scale = settings.scale
        with made.record():
            grads_and_vars, scale = compute(scale)
        grads_and_vars = gradients.drop_none(who, grads_and_vars)
        with _outside(in_control_flow, scope):
            if in_control_flow:
                _reserve_op_names()
            window = Window(grads_and_vars, loss, settings)
        application = applying.Application(who, window, optimizer, settings)
        lock = None
        if every_k:
            with _outside(in_control_flow, scope):
                lock = mutex.Mutex(scope + "mutex")
        accumulate, step = _build_accumulate_and_step(
            scope, window, application, scale, update_ops, settings, lock)
        with _outside(in_control_flow, scope):
            apply, apply_and_reset, reset = _build_apply_and_reset(
                scope, window, application, lock)
            created = made.variables + application.made
            initializer = scopes.named_group(scope, "initializer", lambda: [
                variable.initializer
                for variable in window.variables + created])
            ops = train_ops.AccumulationOps(
                name=scope[:-1], graph=tf.get_default_graph(),
                reduction=settings.reduction,
                accumulate=None if in_control_flow else accumulate,
                apply=apply, reset=reset, apply_and_reset=apply_and_reset,
                initializer=initializer, step=step,
                variables=window.model_variables, update_ops=update_ops,
                **_read_all(scope, window, settings.k))
            state = window.variables + applying.state(
                optimizer, created, application.made_for_model + ops.variables)
    if finish is not None:
        finish(ops)
    recovery.remember(ops, [variable.op for variable in state])
    return ops


def _outside(in_control_flow, scope):
    if not in_control_flow:
        return contextlib.ExitStack()
    return scopes.outside_of_control_flow(scope)


def _reserve_op_names():
    # A model's variable of that name gives way, not the op.
    for op_name in _OP_NAMES:
        tf.get_default_graph().unique_name(op_name)


def _build_accumulate_and_step(scope, window, application, scale, update_ops,
                               settings, lock):
    """The op that adds a micro-batch, and the one that then applies at k."""
    if lock is None:
        return scopes.named_group(
            scope, "accumulate", lambda: update_ops + _build_terms(
                scope, window, scale, settings)), None
    with tf.name_scope(scope + "accumulate/"):
        # From the first term to the reset, one run at a time: a term that is
        # added while another run applies would be lost in its reset.
        held = lock.take(after=window.needed)
        added = tf.group(*_build_terms(
            scope, window, scale, settings, after=[held]))
    accumulate = scopes.named_group(
        scope, "accumulate", lambda: update_ops + [
            mutex.give_back(held, after=[added])])

    def close_window():
        with tf.control_dependencies([added]):
            full = window.is_full()
            applied = application.build(scope + "step/", tf.logical_and(
                full, window.holds_something()))
        with tf.control_dependencies([applied]):
            closed = gate.run_if(full, lambda _: tf.group(*window.reset()))
        return update_ops + [mutex.give_back(held, after=[closed])]

    return accumulate, scopes.named_group(scope, "step", close_window)


def _build_apply_and_reset(scope, window, application, lock):
    """The ops that apply, apply and then reset, and reset."""
    with tf.name_scope(scope + "apply/"):
        # Where there is a lock, it is held from the first read to the last
        # write, as by the op that applies at every k-th run.
        held = [] if lock is None else [lock.take(after=[])]
        with tf.control_dependencies(held):
            applied = application.build(scope, window.holds_something())

    def reset_after(ops):
        with tf.control_dependencies(ops):
            return window.reset()

    def let_go(build_ops, held):
        return lambda: [mutex.give_back(held[0], build_ops())] if held else (
            build_ops())

    # Grouped side by side, reset would overtake apply.
    apply = scopes.named_group(
        scope, "apply", let_go(lambda: [applied], held))
    apply_and_reset = scopes.named_group(
        scope, "apply_and_reset", let_go(lambda: reset_after([applied]), held))
    with tf.name_scope(scope + "reset/"):
        held = [] if lock is None else [lock.take(after=[])]
    reset = scopes.named_group(
        scope, "reset", let_go(lambda: reset_after(held), held))
    return apply, apply_and_reset, reset


def _build_terms(scope, window, scale, settings, after=()):
    """Ops that add one micro-batch, if it is one to add."""
    if settings.nonfinite == "propagate":
        return window.add(scale, after=after)
    names, flags = window.finite()
    good = tf.reduce_all(flags)
    if settings.nonfinite == "skip":
        return window.add(scale, good, after)
    check = tf.raw_ops.Assert(
        condition=good, summarize=len(names), data=[
            "tf1accum: the micro-batch was not added to the window {}, since "
            "these are not all finite:".format(scope[:-1]),
            tf.boolean_mask(tf.constant(names), tf.logical_not(flags))])
    return window.add(scale, after=[check] + list(after))


def _read_all(scope, window, k):
    """What a program may look at, each under a name of its own."""

    def named(name, value):
        return None if value is None else accumulators.map_values(
            lambda tensor: tf.identity(tensor, name=name), value)

    with tf.name_scope(scope + "read/"):
        return dict(
            k=named("k", k) if tf.is_tensor(k) else k,
            average_loss=named("average_loss", window.read_average_loss()),
            count=named("count", window.read_count()),
            weight=named("weight", window.read_weight()),
            skipped=named("skipped", window.read_skipped()),
            accumulators=[
                named(variable.op.name, read) for variable, read in zip(
                    window.model_variables, window.read_accumulators())])
