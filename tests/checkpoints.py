"""What the tests of the command line read and compare: checkpoints, files."""

import hashlib
import os

import numpy as np
import tensorflow.compat.v1 as tf

import models
import tf1accum
from tf1accum import __main__ as command_line


def run(*argv):
    """The exit status of `python -m tf1accum` with these arguments."""
    return command_line.main([str(word) for word in argv])


def save(path, steps=None, **saver_kwargs):
    """Saves what a default `Saver` does, after a run of each of `steps`."""
    saver = tf.train.Saver(**saver_kwargs)
    with models.session() as session:
        for step in steps or []:
            session.run(step)
        return saver.save(session, str(path), write_state=False)


def forget_the_graph(path):
    """Removes the MetaGraph beside a checkpoint."""
    os.remove(str(path) + ".meta")


def keys(path):
    return sorted(name for name, _ in tf.train.list_variables(str(path)))


def values(path):
    """All arrays in a checkpoint, by key."""
    reader = tf.train.NewCheckpointReader(str(path))
    return {name: reader.get_tensor(name)
            for name in reader.get_variable_to_shape_map()}


def content(folder):
    """A digest of each file below `folder`, by name."""
    return {str(path.relative_to(folder)): hashlib.sha256(
        path.read_bytes()).hexdigest()
            for path in sorted(folder.rglob("*")) if path.is_file()}


def write_raw(path, arrays):
    """Writes a checkpoint of `arrays`, a dict of them by key, without a graph."""
    names = sorted(arrays)
    with tf.Graph().as_default(), tf.Session() as session:
        session.run(tf.raw_ops.SaveV2(
            prefix=str(path), tensor_names=names,
            shape_and_slices=[""] * len(names),
            tensors=[tf.constant(arrays[name]) for name in names]))


def zeros(*shape, dtype=np.float32):
    return np.zeros(shape, dtype)


def build_adam(model, k=2, **kwargs):
    """A window on `model` with Adam."""
    return tf1accum.build(model.loss, model.variables,
                          optimizer=tf.train.AdamOptimizer(), k=k, **kwargs)
