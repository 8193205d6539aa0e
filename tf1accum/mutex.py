"""A lock in the graph: what runs under it, one run at a time runs."""

import tensorflow.compat.v1 as tf


class Mutex:
    """A lock that session runs, from any thread, hold in turn."""

    def __init__(self, name):
        self._handle = tf.raw_ops.MutexV2(
            container="", shared_name=name, name="mutex")

    def take(self, after):
        """Waits for the lock, and takes it.

        Args:
          after: list of tensors to have ready before the lock is taken, so that
            it is not held while they are computed.

        Returns:
          A tensor. What is to run under the lock depends on it.
        """
        with tf.control_dependencies(after):
            return tf.raw_ops.MutexLock(mutex=self._handle, name="lock")

    def run_alone(self, build_op, after, name):
        """An op that runs what `build_op` builds while no other run is inside.

        Args:
          build_op: function of no arguments that builds and returns an op.
          after: as for `take`.
          name: name of the op.
        """
        lock = self.take(after)
        with tf.control_dependencies([lock]):
            op = build_op()
        return give_back(lock, after=[op], name=name)


def give_back(lock, after, name="unlock"):
    """An op that gives `lock` back once the list `after` of ops has run."""
    # A lock that nothing consumes may be given back before that.
    with tf.control_dependencies(after):
        return tf.raw_ops.ConsumeMutexLock(mutex_lock=lock, name=name)
