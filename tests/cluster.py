"""A parameter server and its workers, on loopback ports of their own choice."""

import contextlib
import socket

import tensorflow.compat.v1 as tf


def free_ports(number):
    """Ports that nobody listens on, each another."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(contextlib.closing(socket.socket()))
                   for _ in range(number)]
        for one in sockets:
            one.bind(("localhost", 0))
        return [one.getsockname()[1] for one in sockets]


class Cluster:
    """One parameter server and some workers.

    The servers cannot be stopped: they end with the process. What is built
    under a `tf.container` of its own, another graph does not see.
    """

    def __init__(self, workers):
        ports = ["localhost:%d" % port for port in free_ports(workers + 1)]
        self.addresses = {"ps": ports[:1], "worker": ports[1:]}
        self._servers = {}

    def start(self, job, task):
        """Starts a server in this process, and returns its target."""
        self._servers[job, task] = tf.train.Server(
            self.addresses, job_name=job, task_index=task,
            config=tf.ConfigProto(
                inter_op_parallelism_threads=8,
                intra_op_parallelism_threads=1))
        return self._servers[job, task].target


def config(task):
    """Of a session of the worker `task`: it fails rather than to wait long."""
    return tf.ConfigProto(
        device_filters=["/job:ps", "/job:worker/task:%d" % task],
        operation_timeout_in_ms=30000)
