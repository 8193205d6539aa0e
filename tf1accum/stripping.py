"""The copy of a checkpoint that holds the model alone."""

import collections
import glob
import os
import shutil
import tempfile

import tensorflow.compat.v1 as tf

from tf1accum import checkpoint_files
from tf1accum import model_keys
from tf1accum.file_trouble import FileTrouble
from tf1accum.file_trouble import in_one_line

# Bytes of the tensors that are held at once.
_GROUP = 128 * 1024 * 1024

Plan = collections.namedtuple("Plan", "checkpoint meta_graph verdicts")


def plan(path, meta_graph=None):
    """Which keys of a checkpoint stay in a copy of the model alone.

    Args:
      path: of the checkpoint.
      meta_graph: path of the graph that it was saved from, or None for the
        MetaGraph beside it, if there is one.

    Returns:
      A `Plan`: the `checkpoint_files.Checkpoint`, the path of the graph or
      None, and a dict of a `model_keys.Verdict` for each key.

    Raises:
      FileTrouble: a file cannot be read, or nothing would stay.
    """
    checkpoint = checkpoint_files.read(path)
    if checkpoint_files.OBJECT_GRAPH in checkpoint.keys:
        raise FileTrouble(
            "{} was written by tf.train.Checkpoint, whose files cannot be "
            "stripped; those of tf.train.Saver can.".format(checkpoint.prefix))
    meta_graph, model = model_keys.of_checkpoint(checkpoint, meta_graph)
    verdicts = model.judge(checkpoint.keys)
    if not any(verdict.is_model for verdict in verdicts.values()):
        raise FileTrouble(
            "{} holds nothing of the model; nothing was written. inspect says "
            "why of each key.".format(checkpoint.prefix))
    return Plan(checkpoint, meta_graph, verdicts)


def strip(planned, out):
    """Writes what stays of a `Plan` to the checkpoint `out`.

    `out` appears whole or not at all: its index comes last.

    The one thing to know: a variable is held in memory whole; of smaller ones,
    up to 128 MB are at a time.

    Args:
      planned: what `plan` returned.
      out: prefix of the checkpoint to write; nothing of that name may be there.

    Raises:
      FileTrouble: it cannot be written, or the original cannot be read.
    """
    check_out(planned, out)
    names = [name for name, verdict in planned.verdicts.items()
             if verdict.is_model]
    try:
        folder = tempfile.mkdtemp(
            prefix=".tf1accum-strip-", dir=os.path.dirname(out) or ".")
        try:
            written = _write(planned.checkpoint, names, folder)
            _publish(written, out)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    except (tf.errors.OpError, OSError) as error:
        raise FileTrouble("{} could not be copied to {}: {}".format(
            planned.checkpoint.prefix, out, in_one_line(error)))


def check_out(planned, out):
    """Raises `FileTrouble` where `strip` cannot write `planned` to `out`."""
    if not os.path.basename(out) or os.path.isdir(out):
        raise FileTrouble("{0} is a folder. Name the copy in it, such as "
                          "{0}/model.".format(out.rstrip("/")))
    original = planned.checkpoint.prefix
    prefix = checkpoint_files.prefix_of(
        out[:-len(".meta")] if out.endswith(".meta") else out)
    # The one file of the V1 format is called as its prefix is.
    if any(os.path.realpath(original + end) == os.path.realpath(prefix + end)
           for end in ("", ".index")):
        raise FileTrouble(
            "{} is the original, which is never written to. Name another "
            "file.".format(prefix))
    if prefix != out:
        raise FileTrouble("{} is a name of a checkpoint's file. Name its "
                          "prefix: {}.".format(out, prefix))
    for path in [out, out + ".index", out + ".meta"] + sorted(glob.glob(
            glob.escape(out) + ".data-?????-of-?????")):
        if os.path.lexists(path):
            raise FileTrouble(
                "{} exists already. Remove it, or name another "
                "file.".format(path))
    folder = os.path.dirname(out) or "."
    if not os.path.isdir(folder):
        raise FileTrouble(
            "the folder {} does not exist. Make it first.".format(folder))


def _write(checkpoint, names, folder):
    """Copies `names` into a checkpoint in `folder`, and returns its prefix."""
    shards = []
    for number, group in enumerate(_groups(checkpoint.keys, names)):
        shards.append(os.path.join(folder, "shard-{}".format(number)))
        _copy(checkpoint, group, shards[-1])
    whole = os.path.join(folder, "whole")
    with tf.Graph().as_default(), checkpoint_files.session() as session:
        session.run(tf.raw_ops.MergeV2Checkpoints(
            checkpoint_prefixes=shards, destination_prefix=whole,
            delete_old_dirs=False))
    return whole


def _groups(keys, names):
    """Lists of `names` that are of at most `_GROUP` bytes, or of one name."""
    group, size = [], 0
    for name in names:
        more = keys[name].bytes or 0
        if group and size + more > _GROUP:
            yield group
            group, size = [], 0
        group.append(name)
        size += more
    yield group


def _copy(checkpoint, names, prefix):
    with tf.Graph().as_default(), checkpoint_files.session() as session:
        session.run(tf.raw_ops.SaveV2(
            prefix=prefix, tensor_names=names,
            shape_and_slices=[""] * len(names),
            tensors=checkpoint_files.restore(checkpoint, names)))


def _publish(written, out):
    """Moves a checkpoint to `out`, the index last."""
    moved = []
    try:
        for path in sorted(glob.glob(glob.escape(written) + ".data-*")):
            moved.append(out + path[len(written):])
            os.rename(path, moved[-1])
        os.rename(written + ".index", out + ".index")
    except BaseException:
        if not os.path.lexists(out + ".index"):
            for path in moved:
                if os.path.lexists(path):
                    os.remove(path)
        raise
