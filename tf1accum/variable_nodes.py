"""The variables of a graph that is read, not imported."""

import collections

import tensorflow.compat.v1 as tf

from tf1accum import checkpoint_files
from tf1accum import graph_files

_OPS = ("Variable", "VariableV2", "VarHandleOp")
# Ops that hand on what they are given.
PASSING = frozenset([
    "Identity", "RefIdentity", "ReadVariableOp", "Snapshot", "StopGradient",
    "Switch", "RefSwitch", "Enter", "RefEnter", "Exit", "RefExit"])
_REFERENCES = frozenset(["RefIdentity", "RefSwitch", "RefEnter", "RefExit"])
_HANDLES = PASSING - {"ReadVariableOp", "Snapshot"}
# Where a save op has the tensors that it saves; their keys are its input 1.
_SAVED = {"Save": 2, "SaveSlices": 3, "SaveV2": 3}


class VariableNodes:
    """The variables of a graph, and how they are wired.

    Attributes:
      nodes: dict of the nodes by name.
      variables: dict of `checkpoint_files.Key` by the name of the variable.
      trainable: set of the names of those that are trained, or None where the
        file has no collections.
      default_keys: dict of the keys of a default `Saver`, each with the list of
        the variables it saves; of a partitioned variable, its parts.
    """

    def __init__(self, graph_file):
        self.nodes = {node.name: node for node in graph_file.graph_def.node}
        self.variables = collections.OrderedDict(
            (node.name, _declared(node))
            for node in graph_file.graph_def.node if node.op in _OPS)
        self._consumers = collections.defaultdict(list)
        for node in graph_file.graph_def.node:
            for index, name in enumerate(node.input):
                if not name.startswith("^"):
                    self._consumers[_op_name(name)].append((node, index))
        self._read_collections(graph_file.collections)
        self._read_save_ops()

    def consumers(self, name):
        """List of (node, input index) that take what `name` gives."""
        return self._consumers.get(name, [])

    def variable_of(self, tensor, through=PASSING):
        """Name of the variable that `tensor` is a read of, or None."""
        name = _op_name(tensor)
        for _ in range(len(self.nodes)):
            if name in self.variables:
                return name
            node = self.nodes.get(name)
            if node is None or node.op not in through or not node.input:
                return None
            name = _op_name(node.input[0])
        return None

    def updated_by(self, tensor):
        """Name of the variable that an op given `tensor` can update, or None.

        `tensor` is the variable itself, not a read of it.
        """
        name = self.variable_of(tensor, _REFERENCES)
        if name is None:
            name = self.variable_of(tensor, _HANDLES)
            # The identity of any other is a read.
            if name and self.nodes[name].op != "VarHandleOp":
                return None
        return name

    def of_key(self, key):
        """Names of the variables that are saved under `key`, by any saver."""
        saved = self._saved.get(key) or self._named.get(key)
        return saved or ([key] if key in self.variables else [])

    def default_key(self, key):
        """The `checkpoint_files.Key` that a default `Saver` saves as `key`."""
        parts = [self.variables[name] for name in self.default_keys[key]]
        if key not in self._full_shapes:
            return parts[0]
        sizes = [part.bytes for part in parts]
        return checkpoint_files.Key(
            parts[0].dtype, self._full_shapes[key],
            None if None in sizes else sum(sizes))

    def _read_collections(self, protos):
        self.trainable = None
        self.default_keys = collections.OrderedDict()
        self._full_shapes = {}
        self._named = {}
        if protos is None:
            self.default_keys.update(
                (name, [name]) for name in self.variables)
            return
        self.trainable = set(self._listed(
            protos, tf.GraphKeys.TRAINABLE_VARIABLES))
        for collection in (tf.GraphKeys.GLOBAL_VARIABLES,
                           tf.GraphKeys.LOCAL_VARIABLES):
            for name, part in self._listed(protos, collection).items():
                key = part.full_name or name
                self._named.setdefault(key, []).append(name)
                if part.full_name:
                    self._full_shapes[key] = list(part.full_shape)
                if collection == tf.GraphKeys.GLOBAL_VARIABLES:
                    self.default_keys.setdefault(key, []).append(name)

    def _listed(self, protos, collection):
        """Dict of the slice protos of the variables that a collection lists."""
        if collection not in protos:
            return {}
        definition = _variable_def()
        listed = collections.OrderedDict()
        for data in protos[collection].bytes_list.value:
            proto = definition()
            name = (_op_name(proto.variable_name)
                    if graph_files.parse_binary(data, proto) else None)
            # A program may put anything in a collection.
            if name in self.variables:
                listed[name] = proto.save_slice_info_def
        return listed

    def _read_save_ops(self):
        self._saved = {}
        for node in self.nodes.values():
            first = _SAVED.get(node.op)
            if first is None or len(node.input) <= first:
                continue
            tensors = [name for name in node.input[first:]
                       if not name.startswith("^")]
            for key, tensor in zip(
                    _constant_strings(self.nodes.get(_op_name(node.input[1]))),
                    tensors):
                variable = self.variable_of(tensor)
                if variable is not None:
                    names = self._saved.setdefault(key, [])
                    if variable not in names:
                        names.append(variable)


def _constant_strings(node):
    """The strings of a constant node; [] if there are none."""
    if node is None or node.op != "Const" or "value" not in node.attr:
        return []
    return [value.decode("utf-8", "replace")
            for value in node.attr["value"].tensor.string_val]


def _op_name(tensor):
    return tensor.partition(":")[0]


def _declared(node):
    """The `checkpoint_files.Key` of a variable, by its node."""
    shape = None
    if "shape" in node.attr:
        proto = node.attr["shape"].shape
        if not proto.unknown_rank:
            shape = [None if dim.size < 0 else dim.size for dim in proto.dim]
    try:
        dtype = tf.as_dtype(node.attr["dtype"].type)
    except (TypeError, KeyError):
        dtype = None
    return checkpoint_files.make_key(dtype, shape)


def _variable_def():
    """The class of the proto that a collection holds of each variable."""
    # It has no public name.
    with tf.Graph().as_default():
        return type(tf.Variable(0., use_resource=True).to_proto())
