"""The replicas of a `tf.distribute` strategy, and what they do together.

A strategy runs one function of the program once for each replica, side by side:
what is called here is called in each of them alike. Outside of strategies all
this is as if there was one replica, and adds nothing to the graph.
"""

import collections

import tensorflow.compat.v1 as tf

# TensorFlow 2 has each of them in two kinds.
_STRATEGIES = tuple(
    kind for api in (tf, getattr(tf.compat, "v2", tf)) for kind in (
        api.distribute.MirroredStrategy, api.distribute.OneDeviceStrategy))

# own: the one of this replica, a plain variable. whole: what savers and
# initialisers know: the strategy's, of all replicas, or the same.
Variable = collections.namedtuple("Variable", "own whole")


def check(who):
    """Raises RuntimeError in a strategy, unless each replica calls `who`."""
    if not tf.distribute.has_strategy():
        return
    strategy = tf.distribute.get_strategy()
    if not isinstance(strategy, _STRATEGIES):
        raise RuntimeError(
            "{}: works in a tf.distribute.MirroredStrategy or "
            "OneDeviceStrategy, or outside of strategies; got {}. Outside, "
            "write a tower for each device, and average them with "
            "tf1accum.average_tower_gradients.".format(
                who, type(strategy).__name__))
    if tf.distribute.in_cross_replica_context():
        raise RuntimeError(
            "{}: in a strategy, must be called in the function that each "
            "replica runs; got the scope of a {} outside of one. Call it in "
            "the function that is given to strategy.run "
            "(strategy.experimental_run_v2 in TensorFlow 1.15), or in the "
            "model_fn of an Estimator.".format(who, type(strategy).__name__))


def check_outside(who, instead):
    """Raises RuntimeError in a strategy, and says what to do `instead`."""
    if tf.distribute.has_strategy():
        raise RuntimeError(
            "{}: works outside of tf.distribute strategies; got {}. {}".format(
                who, type(tf.distribute.get_strategy()).__name__, instead))


def inside():
    """Whether the caller stands in the function that each replica runs."""
    return (tf.distribute.has_strategy()
            and not tf.distribute.in_cross_replica_context())


def number():
    """Which replica the caller is, from 0."""
    # What TensorFlow says of it is a tensor.
    token = object()
    return together(lambda tokens: tokens, token).index(token)


def in_sync():
    """How many replicas there are, 1 outside."""
    return tf.distribute.get_strategy().num_replicas_in_sync


def device():
    """The device of this replica, None outside."""
    # The context of a replica does not know it in TensorFlow 1.15.
    return tf.distribute.get_strategy().extended.worker_devices[
        number()] if inside() else None


def own_scope(scope):
    """The scope in `scope`, ending in "/", of what this replica does."""
    return "{}replica_{}/".format(scope, number()) if inside() else scope


def together(build, *values):
    """What `build` returns: called once, for all replicas.

    It is called in cross-replica context, in the name scope of the first
    replica, and after whatever any replica is to be ordered after.

    Args:
      build: function of as many lists as there are `values`, each of them what
        every replica has passed here.
      *values: what this replica passes.
    """
    if not inside():
        return build(*[[value] for value in values])

    def build_once(strategy, each):
        with tf.device(None), tf.get_default_graph().colocate_with(
                None, ignore_existing=True):
            built = build(*zip(*[
                values_of() for values_of in
                strategy.experimental_local_results(each)]))
        return lambda: built

    # TensorFlow takes apart and regroups what it knows, but no function.
    return tf.distribute.get_replica_context().merge_call(
        build_once, args=(lambda: values,))()


def in_each(function, values, after):
    """One op of what `function` builds for each of `values`, in its replica.

    For use inside of `together`. There, the scopes in which a replica stands
    are out of force; those that are opened there, in which variables are
    recorded, hold for what the replicas then do together, too.

    Args:
      function: function of a value that returns an op.
      values: list of what each replica has passed to `together`.
      after: list of ops, what each builds is ordered after its own.
    """
    if not tf.distribute.in_cross_replica_context():
        return function(values[0])

    def build():
        with tf.control_dependencies([after[number()]]):
            return function(values[number()])

    strategy = tf.distribute.get_strategy()
    return tf.group(*strategy.experimental_local_results(
        strategy.extended.call_for_each_replica(build)))


def first_of(value):
    """That of the first replica, for all."""
    return together(lambda values: values[0], value)


def mean_of(value):
    """The mean over replicas of `value`, a tensor."""
    return _combined(value, lambda values: tf.realdiv(
        tf.add_n(values, name="sum"), len(values), name="mean"))


def sum_of_losses(loss):
    """The sum over replicas of `loss`, as the gradients are added up.

    The mean in an Estimator, that scales the loss before the gradients.
    """
    if tf.distribute.get_loss_reduction() == tf.distribute.ReduceOp.MEAN:
        return mean_of(loss)
    return _combined(loss, lambda losses: tf.add_n(losses, name="sum"))


def all_true(flags):
    """Which of `flags`, a bool tensor, are true in all replicas."""
    return _combined(flags, lambda values: tf.reduce_all(
        tf.stack(values, name="each"), axis=0, name="in_all"))


def all_of(op):
    """An op, or tensor, that has run when those of all replicas have."""
    return _combined(op, lambda ops: tf.group(*ops, name="in_all"))


def _combined(value, combine):
    """What `combine` makes of those of all replicas; of one, itself."""
    return together(lambda values: values[0] if len(values) == 1 else (
        combine(values)), value)


def one_each(build):
    """What `build` builds for this replica, on no device in particular.

    Args:
      build: function of the end of a name that tells replicas apart.
    """
    if not inside():
        return build("")
    return together(lambda: [
        build("/replica_%d" % replica) for replica in range(in_sync())])[
            number()]


def is_distributed(variable):
    """Whether it is a strategy's: what it is asked for may add ops then."""
    return hasattr(variable, "distribute_strategy")


def parts(variable):
    """The plain variables, one for each replica, that `variable` is."""
    return list(variable.distribute_strategy.experimental_local_results(
        variable)) if is_distributed(variable) else [variable]


def name_of(variable):
    """The op's name of `variable`, that of the first replica in all."""
    return variable.name.rpartition(":")[0]


def apart(name):
    """`name` for variables that are saved by themselves, for each replica.

    It says how many there are: with more or fewer, none is silently missed.
    """
    if not inside():
        return name
    return "of_{}/{}".format(in_sync(), name)


def update(variable, build_op):
    """One op that does to every part of `variable` what `build_op` says."""
    if not inside():
        return build_op(variable)
    return together(lambda: tf.group(*map(build_op, parts(variable))))


def make_variable(initial_value, aggregation, collections, **kwargs):
    """Makes a variable of which each replica has its own.

    What is saved is what all replicas hold together, so that it can be restored
    to any number of them: the sum, say.

    Args:
      initial_value: as for `tf.Variable`.
      aggregation: what they hold together, a `tf.VariableAggregation`; or None
        for what can't be put together: each is saved by itself then.
      collections: list of collections, or None for the default.
      **kwargs: as for `tf.Variable`.

    Returns:
      A `Variable`.
    """
    if not inside():
        variable = tf.Variable(
            initial_value, collections=collections, **kwargs)
        return Variable(variable, variable)
    keys = ([tf.GraphKeys.GLOBAL_VARIABLES] if collections is None
            else list(collections))
    # What no collection lists is found by its op, and not as a whole.
    apart = aggregation is None or not keys

    def make():
        whole = tf.Variable(
            initial_value, collections=[] if apart else keys,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=aggregation or tf.VariableAggregation.SUM, **kwargs)
        if apart:
            for key in keys:
                for part in parts(whole):
                    tf.add_to_collection(key, part)
        return whole

    whole = together(make)
    own = parts(whole)[number()]
    return Variable(own, own if apart else whole)
