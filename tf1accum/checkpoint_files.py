"""Checkpoint files: which tensors one holds, by its index."""

import collections
import glob
import os
import re

import tensorflow.compat.v1 as tf

from tf1accum.file_trouble import FileTrouble
from tf1accum.file_trouble import cannot_be_read
from tf1accum.file_trouble import in_one_line

# What a file of `tf.train.Checkpoint`, of TensorFlow 2, holds besides.
OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"

# dtype: name of the type. shape: list of integers; None for an open size, and
# for a shape that is not known. bytes: None where no file says it (strings).
Key = collections.namedtuple("Key", "dtype shape bytes")

# keys: dict of `Key` by name. dtypes: dict of `tf.DType` by name.
Checkpoint = collections.namedtuple("Checkpoint", "prefix keys dtypes")

_SHARD = re.compile(r"\.data-(\d{5})-of-(\d{5})$")
# The last bytes of a table, which the one file of the V1 format is.
_TABLE_MAGIC = bytes.fromhex("57fb808b247547db")


def prefix_of(path):
    """The prefix that a checkpoint is called by, of it or one of its files."""
    if path.endswith(".index"):
        return path[:-len(".index")]
    return _SHARD.sub("", path)


def is_checkpoint(path):
    """Whether there is a checkpoint at `path`, whole or not."""
    prefix = prefix_of(path)
    return (os.path.lexists(prefix + ".index") or bool(_shards(prefix))
            or _is_v1(path))


def check_name(path):
    """Raises `FileTrouble` where `path` is not, but nearly, a checkpoint."""
    bare = path.rstrip("/")
    prefix = prefix_of(bare)
    if prefix.endswith(".meta"):
        prefix = prefix[:-len(".meta")]
    if prefix != prefix_of(path) and is_checkpoint(prefix):
        raise FileTrouble("{} is no checkpoint. Name its prefix: {}.".format(
            path, prefix))
    if _starts_with(bare, b"model_checkpoint_path:"):
        raise FileTrouble("{} is a list of checkpoints. Name the folder or "
                          "the prefix of one.".format(path))


def meta_graph_beside(prefix):
    """The path of the MetaGraph saved with a checkpoint, or None."""
    path = prefix + ".meta"
    return path if os.path.lexists(path) else None


def make_key(dtype, shape):
    """A `Key` of a `tf.DType`, or None for one that TensorFlow lacks."""
    if dtype is None:
        return Key("unknown", shape, None)
    size = None
    if (dtype not in (tf.string, tf.variant, tf.resource)
            and shape is not None and None not in shape):
        size = dtype.size
        for length in shape:
            size *= length
    return Key(dtype.base_dtype.name, shape, size)


def read(path):
    """The `Checkpoint` at `path`; no tensor of it is read.

    Raises:
      FileTrouble: there is none, or it is not whole.
    """
    prefix = prefix_of(path)
    v1 = _is_v1(path)
    if not v1:
        if not is_checkpoint(path):
            check_name(path)
        _check_files(prefix)
    try:
        reader = tf.train.NewCheckpointReader(prefix)
        shapes = reader.get_variable_to_shape_map()
        dtypes = reader.get_variable_to_dtype_map()
    except (tf.errors.OpError, RuntimeError, ValueError) as error:
        raise FileTrouble("{} is not a checkpoint, or is damaged: {}".format(
            prefix if v1 else prefix + ".index", in_one_line(error)))
    keys = collections.OrderedDict(
        (name, make_key(tf.as_dtype(dtypes[name]), list(shapes[name])))
        for name in sorted(shapes))
    checkpoint = Checkpoint(prefix, keys, dtypes)
    if not v1:
        _check_size(checkpoint)
    return checkpoint


def restore(checkpoint, names):
    """Tensors of the keys `names`, in the default graph.

    A slice of "" is all of it: of a partitioned variable, all parts as one.
    """
    return tf.raw_ops.RestoreV2(
        prefix=checkpoint.prefix, tensor_names=names,
        shape_and_slices=[""] * len(names),
        dtypes=[checkpoint.dtypes[name] for name in names])


def session():
    """A session to read and write files in."""
    # An accelerator would be of no use, and may be another program's.
    return tf.Session(config=tf.ConfigProto(device_count={"GPU": 0}))


def _is_v1(path):
    try:
        with open(path, "rb") as file:
            file.seek(-len(_TABLE_MAGIC), os.SEEK_END)
            return (not path.endswith(".index")
                    and file.read() == _TABLE_MAGIC)
    except (OSError, ValueError):
        return False


def _starts_with(path, start):
    try:
        with open(path, "rb") as file:
            return file.read(len(start)) == start
    except OSError:
        return False


def _shards(prefix):
    """Paths of the data files of `prefix`, by how many there should be."""
    found = collections.defaultdict(list)
    for path in sorted(glob.glob(glob.escape(prefix) + ".data-*")):
        match = _SHARD.search(path)
        if match and path[:match.start()] == prefix:
            found[int(match.group(2))].append(path)
    return found


def _check_files(prefix):
    index = prefix + ".index"
    if os.path.isdir(prefix) and not os.path.lexists(index):
        raise FileTrouble("{0} is a folder. Name a checkpoint in it, such as "
                          "{0}/model.ckpt-1000.".format(prefix.rstrip("/")))
    shards = _shards(prefix)
    try:
        with open(index, "rb") as file:
            if not file.read(1):
                raise FileTrouble("{} is empty.".format(index))
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not os.path.lexists(index):
            raise FileTrouble(
                "{} is missing{}".format(
                    index, ", which says what the data files hold." if shards
                    else ": there is no checkpoint of that name."))
        raise cannot_be_read(index, error)
    _check_shards(prefix, shards)


def _check_shards(prefix, shards):
    if not shards:
        raise FileTrouble(
            "the data of {0} is missing: there is no {0}.data-00000-of-"
            "00001.".format(prefix))
    whole = [number for number in shards if _missing(prefix, number) is None]
    if not whole:
        raise FileTrouble("a shard of {} is missing: {}.".format(
            prefix, _missing(prefix, max(shards))))
    for path in [path for number in whole for path in shards[number]]:
        try:
            open(path, "rb").close()
        except OSError as error:
            raise cannot_be_read(path, error)


def _missing(prefix, number):
    """The first of `number` data files that is not there, or None."""
    for shard in range(number):
        path = "{}.data-{:05d}-of-{:05d}".format(prefix, shard, number)
        if not os.path.lexists(path):
            return path
    return None


def _check_size(checkpoint):
    shards = _shards(checkpoint.prefix)
    needed = sum(key.bytes or 0 for key in checkpoint.keys.values())
    there = max(sum(os.path.getsize(path) for path in paths)
                for number, paths in shards.items()
                if _missing(checkpoint.prefix, number) is None)
    if there >= needed:
        return
    # Or it holds some parts of a partitioned variable, and not the rest.
    for name in checkpoint.keys:
        with tf.Graph().as_default(), session() as reading:
            try:
                reading.run(restore(checkpoint, [name])[0].op)
            except tf.errors.InvalidArgumentError:
                continue
            except tf.errors.OpError as error:
                raise FileTrouble(
                    "the data of {} is cut off or damaged, at {}: {}".format(
                        checkpoint.prefix, name, in_one_line(error)))
