"""Savers that know the model's variables from the rest."""

import tensorflow.compat.v1 as tf

from tf1accum import graph_keys


def model_variables(graph=None):
    """The variables that a checkpoint of the model alone holds.

    All global variables (weights, batch-norm moving statistics, the global
    step, whatever the script made itself) less those of the windows built in
    the graph: accumulators, window scalars, and the state of their optimizers,
    found by identity and never by name.

    The one thing to know: call it after the builders. An optimizer used
    without them is not known here, and its state stays in.

    Args:
      graph: a `tf.Graph`, or None for the default graph.

    Returns:
      A list of variables, in the order in which they were made.
    """
    graph = graph or tf.get_default_graph()
    left_out = {op.name for op in graph_keys.state_ops(graph)}
    return [variable
            for variable in graph.get_collection(tf.GraphKeys.GLOBAL_VARIABLES)
            if variable.op.name not in left_out]


def model_saver(**saver_kwargs):
    """A `tf.train.Saver` of the model alone.

    Saves and restores `model_variables()`, and what else the graph lists as
    saveable (lookup tables, iterators), as the default `Saver` would.

    The one thing to know: call it after the builders, as any saver is made
    when the graph is complete. What it restores is the model alone: run the
    `initializer` of each window after it.

    Args:
      **saver_kwargs: arguments of `tf.train.Saver`, but `var_list`.

    Returns:
      A `tf.train.Saver`.

    Raises:
      TypeError: for `var_list`.
      ValueError: when the graph holds nothing to save.
    """
    if "var_list" in saver_kwargs:
        raise TypeError(
            "tf1accum.model_saver: the variables are the model's; got "
            "var_list. Use tf.train.Saver(var_list) for a list of your own, "
            "or filter tf1accum.model_variables().")
    with tf.name_scope(None):
        return tf.train.Saver(
            model_variables() + tf.get_collection(
                tf.GraphKeys.SAVEABLE_OBJECTS), **saver_kwargs)
