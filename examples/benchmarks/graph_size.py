"""Counts what accumulating adds to a graph: nodes at its top level, and ops.

TensorBoard's graph view first shows one node for each first part of the names
of ops. Counted are those that a way to accumulate adds, less those that
`minimize` adds to the same model: an optimizer's state keeps its names, so that
checkpoints stay interchangeable (Adam's `beta1_power`).

For each variable, `build` adds 11 ops beyond those of `minimize`: the variable
that holds the total 5, adding to it 1, reading it 1, the mean 2, emptying it in
`reset` and in `apply_and_reset` 1 each. Above 999 elements it is 17: the mean
of a full window is spared then, and zeros are no constant.

    python examples/benchmarks/graph_size.py --help
"""

import argparse
import collections
import json

import tensorflow.compat.v1 as tf

import tf1accum

K = 4
LAYERS = (2, 50)


class Model:
    """Layers of one variable each, and the loss of one micro-batch."""

    def __init__(self, layers, size, reuse=False):
        inputs = tf.ones([2, size])
        self.variables = []
        with tf.variable_scope(tf.get_variable_scope(), reuse=reuse), \
                tf.name_scope("model"):
            for i in range(layers):
                with tf.variable_scope("layer{}".format(i)):
                    self.variables.append(
                        tf.get_variable("kernel", [size, size]))
                inputs = tf.tanh(tf.matmul(inputs, self.variables[-1]))
            self.loss = tf.reduce_mean(tf.square(inputs))


class Lookups:
    """The same with a table for each layer, and lookups in it."""

    def __init__(self, layers, size):
        ids = tf.constant([0, 1])
        self.variables = []
        with tf.name_scope("model"):
            for i in range(layers):
                with tf.variable_scope("layer{}".format(i)):
                    self.variables.append(
                        tf.get_variable("table", [size, size]))
            self.loss = tf.add_n([
                tf.reduce_mean(tf.square(tf.nn.embedding_lookup(table, ids)))
                for table in self.variables])


def optimizer():
    return tf.train.AdamOptimizer()


def gradients_of(model):
    """Ready pairs, that are of the program and are not counted."""
    return optimizer().compute_gradients(model.loss, model.variables)


def gradients_of_towers(model):
    """Those of two towers; the second one shares the variables."""
    layers = len(model.variables)
    with tf.name_scope("tower"):
        second = Model(layers, int(model.variables[0].shape[0]), reuse=True)
        return [gradients_of(model), gradients_of(second)]


def clip(pairs):
    grads, variables = zip(*pairs)
    return list(zip(tf.clip_by_global_norm(grads, 1.)[0], variables))


def published_recipe(model):
    """What the best known answer has people write, in other words.

    Stack Overflow, question 46772685. It copies the variables' initial values
    with `initialized_value`, which newer TensorFlow refuses; here are zeros.
    """
    totals = [tf.Variable(tf.zeros(variable.shape), trainable=False)
              for variable in model.variables]
    zero_ops = [total.assign(tf.zeros_like(total)) for total in totals]
    trainer = optimizer()
    pairs = trainer.compute_gradients(model.loss, model.variables)
    accum_ops = [total.assign_add(grad)
                 for total, (grad, _) in zip(totals, pairs)]
    train_step = trainer.apply_gradients(list(zip(totals, model.variables)))
    return zero_ops, accum_ops, train_step


def minimize(model):
    return optimizer().minimize(model.loss, var_list=model.variables)


def minimize_twice(model):
    """Each half of the variables, as of a GAN, by an optimizer of its own."""
    half = len(model.variables) // 2
    for variables in (model.variables[:half], model.variables[half:]):
        optimizer().minimize(model.loss, var_list=variables)


def build_twice(model):
    half = len(model.variables) // 2
    for variables in (model.variables[:half], model.variables[half:]):
        tf1accum.build(model.loss, variables, optimizer(), K)


def gpt2_port(model):
    port = tf1accum.ports.AccumulatingOptimizer(optimizer(), model.variables)
    port.reset()
    port.compute_gradients(model.loss)
    port.apply_gradients()


# What is built, from a model or from what `given` made of it, which is not
# counted; and the same without accumulation.
Kind = collections.namedtuple("Kind", ["build", "given", "model", "alone"])
Kind.__new__.__defaults__ = (lambda model: model, Model, minimize)
# Operations, and the nodes at the top level that are not there without them.
Added = collections.namedtuple("Added", ["ops", "nodes"])

KINDS = collections.OrderedDict([
    ("minimize, no accumulation", Kind(minimize)),
    ("the published recipe", Kind(published_recipe)),
    ("build", Kind(lambda model: tf1accum.build(
        model.loss, model.variables, optimizer(), K))),
    ("build, of lookups", Kind(lambda model: tf1accum.build(
        model.loss, model.variables, optimizer(), K), model=Lookups)),
    ("build, weighted, skipping, clipped", Kind(
        lambda given: tf1accum.build(
            given[0].loss, given[0].variables, optimizer(), K,
            weight=given[1], nonfinite="skip", transform=clip),
        lambda model: (model, tf.constant(2., name="weight")))),
    ("build_from_gradients", Kind(
        lambda pairs: tf1accum.build_from_gradients(pairs, optimizer(), K),
        gradients_of)),
    ("build_from_gradients, of two towers", Kind(
        lambda towers: tf1accum.build_from_gradients(
            tf1accum.average_tower_gradients(towers), optimizer(), K),
        gradients_of_towers)),
    ("two builds", Kind(build_twice, alone=minimize_twice)),
    ("build_host", Kind(lambda model: tf1accum.build_host(
        model.loss, model.variables, optimizer()))),
    ("AccumulatingOptimizer", Kind(
        lambda model: tf1accum.AccumulatingOptimizer(
            optimizer(), K).minimize(model.loss))),
    ("ports.AccumGradOptimizer", Kind(
        lambda given: tf1accum.ports.AccumGradOptimizer(
            optimizer(), K).minimize(given[0].loss, given[1]),
        lambda model: (model, tf.train.get_or_create_global_step()))),
    ("ports.AccumulatingOptimizer", Kind(gpt2_port)),
])


def added(kind, layers, size):
    """What `kind` adds to its model, in a graph of their own."""
    with tf.Graph().as_default() as graph:
        given = kind.given(kind.model(layers, size))
        before = set(graph.get_operations())
        kind.build(given)
        ops = [op for op in graph.get_operations() if op not in before]
        return Added(ops, top_level(ops) - top_level(before))


def top_level(ops):
    """The nodes that TensorBoard shows for them before any is opened."""
    return {op.name.partition("/")[0] for op in ops}


def nodes_beyond_minimize(kind, nodes, size):
    """Those of `nodes` that are not there with `minimize` alone, sorted."""
    # Which these are does not depend on the number of layers.
    alone = added(Kind(kind.alone, model=kind.model), 2, size)
    return sorted(nodes - alone.nodes)


def measure(size):
    """What is printed, by kind."""
    results = collections.OrderedDict()
    for name, kind in KINDS.items():
        found = {layers: added(kind, layers, size) for layers in LAYERS}
        ops = {layers: len(found[layers].ops) for layers in LAYERS}
        few, many = LAYERS
        results[name] = {
            "nodes": {layers: nodes_beyond_minimize(
                kind, found[layers].nodes, size) for layers in LAYERS},
            "ops": ops, "ops_per_variable": (ops[many] - ops[few]) / float(
                many - few)}
    return results


def print_results(results, size):
    print("TensorFlow {}, layers of one variable, [{}, {}]\n".format(
        tf.__version__, size, size))
    line = "{:36} {:>9} {:>9} {:>13}"
    print(line.format("", "nodes, of", "nodes, of", "ops for each"))
    print(line.format("", *["{} layers".format(layers) for layers in LAYERS]
                      + ["variable"]))
    for name, found in results.items():
        print(line.format(
            name, *[len(found["nodes"][layers]) for layers in LAYERS]
            + ["{:.1f}".format(found["ops_per_variable"])]))
    print("\nNodes: at the top level, beyond those of minimize. Ops: all that "
          "are added,\nthose of the gradients, unless these are given, and of "
          "the optimizer among them.")


def positive(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return number


def main():
    parser = argparse.ArgumentParser(
        description="Counts what each way to accumulate adds to a graph.")
    parser.add_argument("--size", type=positive, default=64,
                        help="width of the layers (default: 64); below 1,000 "
                        "elements, zeros are a constant")
    parser.add_argument("--json", action="store_true",
                        help="print all, with the names of the nodes, as JSON")
    settings = parser.parse_args()

    tf.disable_v2_behavior()
    tf.logging.set_verbosity(tf.logging.ERROR)
    results = measure(settings.size)
    if settings.json:
        print(json.dumps({"tensorflow": tf.__version__, "size": settings.size,
                          "kinds": results}, indent=2))
    else:
        print_results(results, settings.size)


if __name__ == "__main__":
    main()
