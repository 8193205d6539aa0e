"""A lock in the graph: what runs under it, one run at a time runs."""

import tensorflow.compat.v1 as tf


class Mutex:
    """A lock that session runs, from any thread, hold in turn."""

    def __init__(self, name):
        self._handle = tf.raw_ops.MutexV2(
            container="", shared_name=name, name="mutex")

    def run_alone(self, build_op, after):
        """Runs what `build_op` builds while no other run is inside.

        Args:
          build_op: function of no arguments that builds and returns an op.
          after: list of tensors to have ready before the lock is taken, so that
            it is not held while they are computed.

        Returns:
          An op that ends after that op and gives the lock back.
        """
        with tf.control_dependencies(after):
            lock = tf.raw_ops.MutexLock(mutex=self._handle, name="lock")
        with tf.control_dependencies([lock]):
            op = build_op()
        # A lock that nothing consumes may be given back while the op runs.
        with tf.control_dependencies([op]):
            return tf.raw_ops.ConsumeMutexLock(mutex_lock=lock, name="unlock")
