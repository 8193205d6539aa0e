"""What people see of the graph: one box that explains itself."""

import functools
import importlib.util
import json
import os
import re

import pytest
import tensorflow.compat.v1 as tf

import models
import tf1accum

BENCHMARK = os.path.join(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "examples",
    "benchmarks", "graph_size.py")

# What may be directly in the box: the stages, as the data flows, and what is
# there for programs to run, to fetch or to restore.
STAGES = {
    "tower_mean", "scale", "gradients", "accumulate", "placeholders", "mean",
    "transform", "apply", "after_apply", "reset", "apply_and_reset", "step",
    "step_and_count", "apply_gradients", "initializer", "read"}
SINGLE_OPS = {
    "accumulate", "apply", "apply_and_reset", "reset", "initializer", "step",
    "step_and_count", "apply_gradients", "count", "average_loss", "weight",
    "skipped", "mutex", "record"}
# TensorFlow's own code, or the program's, names these: gradients, what a
# transform does, what an optimizer adds, and what every variable has.
NAMED_BY_OTHERS = re.compile(
    r"gradients/|(step/)?(transform/|after_apply/|apply/Adam)|"
    r".*/(Initializer/zeros(/\w+)?|IsInitialized/VarIsInitializedOp|Assign|"
    r"Read/ReadVariableOp)$")
# The names that TensorFlow gives besides the types of ops.
DEFAULTS = {"add", "concat", "group_deps", "mul", "packed", "range", "stack",
            "strided_slice", "sub", "truediv"}


def load_benchmark():
    spec = importlib.util.spec_from_file_location("graph_size", BENCHMARK)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


graph_size = load_benchmark()
OURS = [name for name in graph_size.KINDS
        if name not in ("minimize, no accumulation", "the published recipe")]


@functools.lru_cache(maxsize=None)
def added(name, layers, size=4):
    return graph_size.added(graph_size.KINDS[name], layers, size)


def nodes(name, layers):
    return graph_size.nodes_beyond_minimize(
        graph_size.KINDS[name], added(name, layers).nodes, size=4)


def ops_in_boxes(ops):
    """(name in its box, op) of those of `ops` that are in one."""
    for op in ops:
        box, _, name = op.name.partition("/")
        if box.startswith("accumulation"):
            yield name, op


def many(name):
    # Lookups take a while to build.
    return 10 if name == "build, of lookups" else 50


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("layers", [lambda name: 2, many])
def test_one_node_is_added_at_the_top_level(name, layers):
    layers = layers(name)
    assert nodes(name, layers) == (
        ["accumulation", "accumulation_1"] if name == "two builds"
        else ["accumulation"])


def test_the_published_recipe_adds_dozens_and_more_with_each_layer():
    assert len(nodes("the published recipe", 4)) > 12
    assert len(nodes("the published recipe", 12)) > 36
    assert nodes("minimize, no accumulation", 2) == []


@pytest.mark.parametrize("name", OURS)
def test_the_opened_box_holds_the_stages_and_the_accumulators(name):
    for layers in (2, many(name)):
        own, _ = zip(*ops_in_boxes(added(name, layers).ops))
        directly = {path for path in own if "/" not in path}
        assert directly <= SINGLE_OPS
        below = {path.partition("/")[0] for path in own} - directly
        assert below <= STAGES | {"layer%d" % i for i in range(layers)}


@pytest.mark.parametrize("name", OURS)
def test_every_op_in_the_box_has_a_name_that_says_what_it_is(name):
    unnamed = []
    for path, op in ops_in_boxes(added(name, 2).ops):
        last = path.rpartition("/")[2]
        if not NAMED_BY_OTHERS.match(path) and (
                re.sub(r"_\d+$", "", last) in DEFAULTS | {op.type}
                or last[0].isupper()):
            unnamed.append(op.name)
    assert unnamed == []


@pytest.mark.parametrize("name", OURS)
def test_nothing_in_the_box_is_numbered_for_want_of_a_name(name):
    assert [path for path, _ in ops_in_boxes(added(name, 2).ops)
            if re.search(r"_\d+(/|$)", path)
            and not NAMED_BY_OTHERS.match(path)] == []


@pytest.mark.parametrize("name", OURS)
def test_ops_grow_in_line_with_the_variables(name):
    one, two, four = (len(added(name, layers).ops) for layers in (2, 4, 8))
    assert four - two == 2 * (two - one)


@pytest.mark.parametrize("size, mean, zeros", [(4, 2, 0), (40, 4, 3 + 1 + 1)])
def test_an_accumulator_costs_eleven_ops_beyond_those_of_minimize(
        size, mean, zeros):
    """More where it is large: a mean that spares a pass; and where zeros are
    many: at first, their size, in either reset."""
    def per_variable(name):
        return len(added(name, 3, size).ops) - len(added(name, 2, size).ops)

    alone = per_variable("minimize, no accumulation")
    # The variable itself 5, add, read, mean, reset and apply_and_reset.
    assert per_variable("build") - alone == 5 + 1 + 1 + mean + 2 + zeros
    # Of step: mean, apply without what makes slots, reset. Of Adam: 1.
    assert per_variable("AccumulatingOptimizer") - per_variable("build") == (
        mean + 1 + zeros // 5 + 1)
    # A placeholder.
    assert per_variable("build_host") - alone == 1


@pytest.mark.parametrize("options", [
    dict(nonfinite="raise"), dict(sparse="dense"), dict(reduction="sum"),
    dict(accumulator_dtype=tf.float64),
    dict(after_apply=lambda: tf.no_op(name="own")),
    dict(weight=True), dict(k=True), dict(global_step=True)])
def test_options_leave_the_box_in_order(options, behaviour):
    ids = tf.placeholder(tf.int32, [None])
    table = tf.get_variable("words/table", [3, 2])
    half = tf.get_variable("layer/half", [2, 2], tf.float16)
    loss = tf.reduce_sum(tf.matmul(
        tf.gather(table, ids), tf.cast(half, tf.float32)))
    made = dict(weight=tf.size(ids), k=tf.size(ids), global_step=(
        tf.train.get_or_create_global_step()))
    options = {key: made[key] if value is True else value
               for key, value in options.items()}
    before = set(tf.get_default_graph().get_operations())
    tf1accum.build(loss, [table, half], tf.train.AdamOptimizer(),
                   **dict(dict(k=3), **options))
    for op in set(tf.get_default_graph().get_operations()) - before:
        box, _, path = op.name.partition("/")
        if box != "accumulation" or NAMED_BY_OTHERS.match(path):
            continue
        last = path.rpartition("/")[2]
        assert not last[0].isupper() and last not in DEFAULTS, op.name
        assert not re.search(r"_\d+(/|$)", path), op.name


def test_gradients_of_an_optimizers_own_are_in_the_same_scope():
    class Decaying(tf.train.AdamOptimizer):
        def compute_gradients(self, loss, *args, **kwargs):
            return [(grad + 0.1 * variable, variable) for grad, variable in
                    super().compute_gradients(loss, *args, **kwargs)]

    model = models.Regression()
    before = set(tf.get_default_graph().get_operations())
    tf1accum.build(model.loss, model.variables, Decaying(), k=2)
    inside = {op.name.split("/")[1]
              for op in set(tf.get_default_graph().get_operations()) - before
              if op.name.startswith("accumulation/")}
    assert inside <= STAGES | SINGLE_OPS | {"model"}


def test_what_two_towers_average_is_in_the_box_of_the_window_built_next():
    model = models.Regression()
    pairs = tf.train.AdamOptimizer().compute_gradients(model.loss)
    for box in ("accumulation", "accumulation_1"):
        mean = tf1accum.average_tower_gradients([pairs, pairs])
        assert mean[0][0].op.name == box + "/tower_mean/model/w/mean"
        ops = tf1accum.build_from_gradients(
            mean, tf.train.GradientDescentOptimizer(1.), k=1)
        assert ops.name == box


def test_a_box_holds_the_means_of_towers_of_several_losses():
    model = models.Regression()
    pairs = tf.train.AdamOptimizer().compute_gradients(model.loss)
    means = [tf1accum.average_tower_gradients([pairs, pairs])
             for _ in range(2)]
    assert means[1][0][0].op.name == (
        "accumulation/tower_mean_1/model/w/mean")
    for box, mean in zip(("accumulation", "accumulation_1"), means):
        assert tf1accum.build_from_gradients(
            mean, tf.train.GradientDescentOptimizer(1.), k=1).name == box


def test_many_zeros_are_made_after_the_apply_and_not_held_from_the_start():
    """Zeros of all variables at once would be the memory of another model."""
    v = tf.get_variable("v", [2000], use_resource=True)
    ops = tf1accum.build(tf.reduce_sum(v * v), [v],
                         tf.train.GradientDescentOptimizer(1.), k=2)
    reset, = [op for op in ops.apply_and_reset.control_inputs
              if op.name == "accumulation/apply_and_reset/reset/v"]
    zeros = reset.inputs[1].op
    assert zeros.type == "Fill"
    assert [op.name for op in zeros.control_inputs] == [
        "accumulation/apply/gate"]
    assert not [op for op in tf.get_default_graph().get_operations()
                if op.type == "Const" and 2000 in
                op.outputs[0].shape.as_list()]


def test_the_benchmark_prints_what_it_counts(monkeypatch, capsys):
    monkeypatch.setattr(graph_size, "LAYERS", (2, 3))
    monkeypatch.setattr(graph_size, "KINDS", {
        name: graph_size.KINDS[name]
        for name in ("the published recipe", "build")})
    monkeypatch.setattr("sys.argv", [BENCHMARK, "--size", "4"])
    graph_size.main()
    table = capsys.readouterr().out
    assert re.search(r"^build +1 +1 +[\d.]+$", table, re.MULTILINE)
    monkeypatch.setattr("sys.argv", [BENCHMARK, "--size", "4", "--json"])
    graph_size.main()
    found = json.loads(capsys.readouterr().out)["kinds"]
    assert found["build"]["nodes"] == {
        "2": ["accumulation"], "3": ["accumulation"]}
    assert len(found["the published recipe"]["nodes"]["3"]) > 9
