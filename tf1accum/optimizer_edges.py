"""Which variables are an optimizer's or an accumulator's, by a graph's edges.

    weight       what an Apply op trains: its first variable
    slot         any further variable of an Apply op
    beta power   what an Apply op reads where it takes one
    accumulator  what is added to, and goes into the gradient of an Apply op for
                 a weight of its shape, elementwise
    own state    of an optimizer made of plain ops: under or beside a weight, of
                 its shape, and computed with in what updates it

None of them are moving averages, counters, rates, and what the loss reads: an
update may compute with them, but of another shape, or further away.
"""

import re

from tf1accum import variable_nodes

_APPLY = re.compile(r"(?:Resource)?(?:Sparse)?Apply([A-Z]\w*)$")
# The input of an Apply op that is the gradient, sparse or dense.
_GRADIENT = {
    "Adadelta": 6, "Adagrad": 3, "AdagradDA": 3, "AdagradV2": 4, "AdaMax": 8,
    "Adam": 9, "AdamWithAmsgrad": 10, "AddSign": 6, "CenteredRMSProp": 8,
    "Ftrl": 3, "FtrlV2": 3, "GradientDescent": 2, "KerasMomentum": 3,
    "Momentum": 3, "PowerSign": 6, "ProximalAdagrad": 5,
    "ProximalGradientDescent": 4, "RMSProp": 7}
_POWERS = {"AdaMax": [3], "Adam": [3, 4], "AdamWithAmsgrad": [4, 5]}
_SCALARS = variable_nodes.PASSING | {"Cast"}
_UPDATE = re.compile(
    r"Assign(Add|Sub)?$|Assign(Add|Sub)?VariableOp$|"
    r"(Resource)?Scatter(Nd)?(Add|Sub|Update|Mul|Div|Min|Max)$")
_ADDITION = re.compile(
    r"AssignAdd(VariableOp)?$|(Resource)?Scatter(Nd)?Add$")
# What may lie between an accumulator and the gradient that is applied: a
# variable that the loss reads is further away.
_ELEMENTWISE = variable_nodes.PASSING | {
    "Add", "AddN", "AddV2", "Cast", "CheckNumerics", "ClipByValue",
    "CollectiveReduce", "Div", "DivNoNan", "HorovodAllreduce", "Maximum",
    "Merge", "Minimum", "Mul", "NcclAllReduce", "Neg", "RealDiv", "RefMerge",
    "Select", "SelectV2", "Sub"}


class OptimizerEdges:
    """What the edges of a graph say of its variables.

    Attributes:
      weights: dict of the variables that an Apply op trains, with its type.
      state: dict of the variables that are not the model's, each with why.
      hidden: set of the variables that a function is given, so that their
        edges are not seen.
    """

    def __init__(self, graph):
        """Reads the edges of a `variable_nodes.VariableNodes`."""
        self._graph = graph
        self.weights = {}
        self.state = {}
        applies = [(node, _APPLY.match(node.op))
                   for node in graph.nodes.values() if _APPLY.match(node.op)]
        for node, match in applies:
            self._read_apply(node, match.group(1))
        self._trained = set(self.weights) | (graph.trainable or set())
        self._find_accumulators()
        self._find_own_state()
        self.hidden = {name for name in graph.variables
                       if any(_calls_function(node)
                              for node, _ in graph.consumers(name))}

    def is_trained(self, name):
        """Whether an Apply op or the graph's list says so."""
        return name in self._trained

    def _read_apply(self, node, family):
        inputs = [name for name in node.input if not name.startswith("^")]
        weight = self._graph.updated_by(inputs[0]) if inputs else None
        if weight is None:
            return
        self.weights[weight] = node.op
        for name in inputs[1:]:
            slot = self._graph.updated_by(name)
            if slot is not None:
                self.state[slot] = "slot of {} in {}".format(weight, node.op)
        for index in _POWERS.get(family, []):
            power = (self._graph.variable_of(inputs[index], _SCALARS)
                     if index < len(inputs) else None)
            if power is not None and self._graph.variables[power].shape == []:
                self.state[power] = "beta power of {}".format(node.op)

    def _candidates(self):
        return [name for name in self._graph.variables
                if name not in self._trained and name not in self.state]

    def _find_accumulators(self):
        for name in self._candidates():
            if any(_ADDITION.match(node.op) and index == 0
                   for node, index in self._graph.consumers(name)):
                weight = self._updated_by(
                    name, self._weights_like(name), _ELEMENTWISE)
                if weight is not None:
                    self.state[name] = "adds up what is applied to " + weight

    def _find_own_state(self):
        for name in self._candidates():
            weight = self._updated_by(name, {
                weight for weight in self._weights_like(name)
                if name.startswith(weight + "/")
                or self._is_beside(name, weight)}, None)
            if weight is not None:
                self.state[name] = "computed with in the update of " + weight

    def _weights_like(self, name):
        """The weights of the shape of `name`."""
        shape = self._graph.variables[name].shape
        weights = (self._graph.variables if self._graph.trainable is None
                   else self._trained)
        return {weight for weight in weights
                if weight != name and weight not in self.state
                and shape is not None and None not in shape
                and self._graph.variables[weight].shape == shape}

    def _is_beside(self, name, weight):
        """Whether `name` was asked to be on the device of `weight`."""
        attrs = self._graph.nodes[name].attr
        return "_class" in attrs and (
            "loc:@" + weight).encode() in attrs["_class"].list.s

    def _updated_by(self, name, weights, between):
        """One of `weights` whose update computes with `name`, or None.

        Args:
          name: of a variable.
          weights: set of names.
          between: set of the types of op that may lie between, None for any.
        """
        if not weights:
            return None
        # A value with which nothing was computed is a copy, put back.
        seen = {(name, False)}
        todo = list(seen)
        while todo:
            source, computed = todo.pop()
            for node, index in self._graph.consumers(source):
                weight = self._weight_of_update(node, index, computed)
                if weight in weights:
                    return weight
                if index > 0 and (_UPDATE.match(node.op)
                                  or _APPLY.match(node.op)):
                    continue
                if not (between is None or node.op in between
                        or _UPDATE.match(node.op)):
                    continue
                state = (node.name, computed or not (
                    node.op in variable_nodes.PASSING
                    or _UPDATE.match(node.op)))
                if state not in seen:
                    seen.add(state)
                    todo.append(state)
        return None

    def _weight_of_update(self, node, index, computed):
        """The weight that `node` updates by its input `index`, or None."""
        match = _APPLY.match(node.op)
        if match and index == _GRADIENT.get(match.group(1)):
            return self._graph.updated_by(node.input[0])
        if _UPDATE.match(node.op) and index > 0 and computed:
            weight = self._graph.updated_by(node.input[0])
            # With an Apply op for it, this is not how it is trained.
            return None if weight in self.weights else weight
        return None


def _calls_function(node):
    return any(value.HasField("func") or value.list.func
               for value in node.attr.values())
