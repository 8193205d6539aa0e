"""Files that hold a graph: a MetaGraph, a GraphDef, or an event file."""

import collections
import hashlib
import os
import re
import warnings

import tensorflow.compat.v1 as tf
from google.protobuf import message
from google.protobuf import text_format

from tf1accum.file_trouble import FileTrouble
from tf1accum.file_trouble import cannot_be_read
from tf1accum.file_trouble import in_one_line

META_GRAPH = "meta_graph"
GRAPH_DEF = "graph_def"

# kind: META_GRAPH or GRAPH_DEF. collections: dict of the collections' protos,
# None for a GraphDef.
GraphFile = collections.namedtuple("GraphFile", "kind graph_def collections")

_NODE_NAME = re.compile(r"[A-Za-z0-9.][A-Za-z0-9_.\\/>-]*$")
_OP_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.>]*$")


class EndsEarly(Exception):
    """After which event a file ends before its last one does."""


def read(path, expected="a MetaGraph or a GraphDef"):
    """The `GraphFile` at `path`, binary or text.

    No op is looked up: the graph may hold ops that this TensorFlow lacks.

    Args:
      path: of the file.
      expected: what might be there, in words.

    Raises:
      FileTrouble: it cannot be read, or is something else.
    """
    data = _content(path)
    if os.path.basename(path).startswith("saved_model.pb"):
        raise FileTrouble(
            "{} is of a SavedModel, which is for serving and not read "
            "here.".format(path))
    for parse in (parse_binary, _parse_text):
        for proto, kind in ((tf.MetaGraphDef(), META_GRAPH),
                            (tf.GraphDef(), GRAPH_DEF)):
            if parse(data, proto):
                found = _graph_file(proto, kind)
                if found is not None:
                    return found
    raise FileTrouble(
        "{} is not {}, or is damaged.".format(path, expected))


def is_event_file(path):
    """Whether an event file, of a `tf.summary.FileWriter`, is at `path`."""
    try:
        with open(path, "rb") as file:
            # The record of the first event starts with its length.
            return b"brain.Event:" in file.read(64)
    except OSError:
        return False


def read_events(path):
    """The `GraphFile`s in an event file, each once, in their order.

    Yields:
      `GraphFile`s. The file is read event by event.

    Raises:
      EndsEarly: after what was read, it is cut off.
      FileTrouble: it holds what is no event, or no graph.
    """
    seen = set()
    number = 0
    try:
        for event in tf.train.summary_iterator(path):
            number += 1
            for data, proto, kind in (
                    (event.meta_graph_def, tf.MetaGraphDef(), META_GRAPH),
                    (event.graph_def, tf.GraphDef(), GRAPH_DEF)):
                if data and not parse_binary(data, proto):
                    raise FileTrouble("{} holds a damaged graph, in event "
                                      "{}.".format(path, number))
                found = _graph_file(proto, kind)
                # The same graph may be serialised in another order.
                digest = hashlib.sha256(
                    proto.SerializeToString(deterministic=True)).digest()
                if found is not None and digest not in seen:
                    seen.add(digest)
                    yield found
    except tf.errors.DataLossError:
        raise EndsEarly("after {} event{} it is cut off, damaged, or still "
                        "being written".format(
                            number, "" if number == 1 else "s"))
    except (tf.errors.OpError, message.DecodeError) as error:
        raise FileTrouble("{} is damaged after {} events: {}".format(
            path, number, in_one_line(error)))


def _content(path):
    try:
        with open(path, "rb") as file:
            data = file.read()
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not os.path.lexists(path):
            raise FileTrouble("{} does not exist.".format(path))
        raise cannot_be_read(path, error)
    if not data:
        raise FileTrouble("{} is empty.".format(path))
    return data


def parse_binary(data, proto):
    """Whether `data` is a message of the type of `proto`; read into it."""
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            proto.ParseFromString(data)
        # An older protobuf only warns of what it did not read.
        return not warned
    except (message.DecodeError, ValueError, RuntimeError):
        return False


def _parse_text(data, proto):
    try:
        text_format.Parse(data.decode("utf-8"), proto,
                          allow_unknown_field=True)
        return True
    except (text_format.ParseError, ValueError, RecursionError):
        return False


def _graph_file(proto, kind):
    """What was parsed, or None where it is bytes of something else.

    Any bytes may parse, as fields that are not known.
    """
    graph_def = proto.graph_def if kind == META_GRAPH else proto
    if not all(_NODE_NAME.match(node.name) and _OP_NAME.match(node.op)
               for node in graph_def.node):
        return None
    if not graph_def.node and not (
            kind == META_GRAPH and proto.meta_info_def.tensorflow_version):
        return None
    return GraphFile(kind, graph_def, dict(proto.collection_def)
                     if kind == META_GRAPH else None)
