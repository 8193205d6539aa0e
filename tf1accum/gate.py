"""The gate: ops that run only when a predicate holds."""

import tensorflow.compat.v1 as tf

# Up to here, a pass over memory takes less time than two more ops.
_FEW_ELEMENTS = 1000


def run_if(predicate, build_op):
    """Runs what `build_op` builds only in the runs where `predicate` holds.

    The op is built in the main graph, under a control dependency on the live
    side of a Switch, and revived by a Merge. `tf.cond` would refuse reference
    variables under control flow v2.

    Args:
      predicate: scalar bool tensor.
      build_op: function that builds and returns an op, of the op that all it
        builds is ordered after. What it reads has to be read inside it, or it
        is read in every run.

    Returns:
      An op that can be run, and depended on, whatever `predicate` is.
    """
    with tf.name_scope("gate") as scope:
        switch = tf.raw_ops.Switch(
            data=predicate, pred=predicate, name="switch")
        live = tf.identity(switch.output_true, name="live")
    with tf.control_dependencies([live]):
        op = build_op(live.op)
    with tf.name_scope(scope):
        with tf.control_dependencies([op]):
            done = tf.identity(live, name="done")
        return tf.raw_ops.Merge(
            inputs=[switch.output_false, done], name=scope).output.op


def scale_unless(predicate, tensor, factor, name):
    """Returns `tensor` times `factor`, itself where `predicate` holds.

    The buffer is handed on where it holds: no pass over memory.

    Args:
      predicate: scalar bool tensor, whether `factor` is 1.
      tensor: tensor of any shape.
      factor: scalar tensor of the same type.
      name: name of what is returned.
    """
    if (tensor.shape.is_fully_defined()
            and tensor.shape.num_elements() < _FEW_ELEMENTS):
        return tf.multiply(tensor, factor, name=name)
    switch = tf.raw_ops.Switch(data=tensor, pred=predicate, name="switch")
    scaled = tf.multiply(switch.output_false, factor, name="scaled")
    merged = tf.raw_ops.Merge(
        inputs=[switch.output_true, scaled], name=name).output
    merged.set_shape(tensor.shape)
    return merged
