"""What the graph looks like: names, collections, and the ambient scope."""

import contextlib

import pytest
import tensorflow.compat.v1 as tf

import models
import tf1accum
from conftest import in_pairs


def build(model, **kwargs):
    kwargs.setdefault("optimizer", tf.train.AdamOptimizer())
    return tf1accum.build(model.loss, model.variables, k=3, **kwargs)


@in_pairs
def test_everything_added_is_in_one_box_or_is_the_optimizers(
        behaviour, use_resource):
    model = models.Regression(use_resource=use_resource)
    before = {op.name for op in tf.get_default_graph().get_operations()}
    build(model, global_step=None)
    added = {op.name for op in tf.get_default_graph().get_operations()
             } - before
    state = ("beta1_power", "beta2_power", "model/w/Adam", "model/b/Adam")
    assert not [name for name in added
                if not name.startswith(("accumulation/",) + state)]


def test_the_names_are_those_of_the_table(use_resource):
    """Row D9: those of the model's variables, whatever is built before."""
    model = models.Regression(use_resource=use_resource)
    ops = build(model)
    graph = tf.get_default_graph()
    for role in ("accumulate", "apply", "apply_and_reset", "reset",
                 "initializer"):
        assert graph.get_operation_by_name(
            "accumulation/" + role) is getattr(ops, role)
    own = [v.op.name for v in tf.global_variables()
           if v.op.name.startswith("accumulation/")]
    assert own == ["accumulation/count", "accumulation/average_loss",
                   "accumulation/model/w", "accumulation/model/b"]
    assert [v.op.name for v in tf.global_variables()][-6:] == [
        "beta1_power", "beta2_power", "model/w/Adam", "model/w/Adam_1",
        "model/b/Adam", "model/b/Adam_1"]


def test_a_second_build_gets_a_box_of_its_own():
    model = models.Regression()
    assert build(model).name == "accumulation"
    second = build(model)
    assert second.name == "accumulation_1"
    assert second.apply.name == "accumulation_1/apply"
    assert build(model, name="mine").name == "mine"


@pytest.mark.parametrize("name", [
    "apply", "accumulate", "reset", "count", "average_loss", "mean",
    "initializer", "apply_and_reset", "accumulate/w", "read", "gradients"])
def test_a_model_variable_may_be_called_as_our_own_ops_are(name):
    v = tf.get_variable(name, initializer=2.)
    ops = tf1accum.build(
        v * v, [v], optimizer=tf.train.GradientDescentOptimizer(0.25), k=1)
    assert ops.apply.name == "accumulation/apply"
    with models.session() as session:
        session.run(ops.accumulate)
        session.run(ops.apply_and_reset)
        assert session.run([v, ops.count]) == [1., 0]


def test_nothing_added_is_trainable():
    """Row D10."""
    model = models.Regression()
    before = tf.trainable_variables()
    build(model)
    assert [v.name for v in tf.trainable_variables()] == [
        v.name for v in before]


def test_collections_say_where_own_variables_are_listed():
    model = models.Regression()
    ops = build(model, collections=[tf.GraphKeys.LOCAL_VARIABLES])
    own = [v.name for v in tf.local_variables()]
    assert own == ["accumulation/count:0", "accumulation/average_loss:0",
                   "accumulation/model/w:0", "accumulation/model/b:0"]
    assert not [v for v in tf.global_variables()
                if v.name.startswith(ops.name)]


def test_own_state_is_resource_variables(use_resource):
    model = models.Regression(use_resource=use_resource)
    build(model)
    assert {v.op.type for v in tf.global_variables()
            if v.op.name.startswith("accumulation/")} == {"VarHandleOp"}


def test_no_op_that_only_sometimes_lives_is_left_in_a_collection():
    """A MetaGraph's train op must be one that can be fetched."""
    model = models.Regression()
    minimize = tf.train.GradientDescentOptimizer(0.1).minimize(model.loss)
    build(model)
    assert tf.get_collection(tf.GraphKeys.TRAIN_OP) == [minimize]


def test_what_is_kept_in_collections_serialises(export, tmp_path):
    ops = build(models.Regression())
    export(tmp_path / "graph.meta")
    with tf.Graph().as_default() as graph:
        tf.train.import_meta_graph(str(tmp_path / "graph.meta"))
        assert [op.name for op in graph.get_collection(
            "tf1accum/accumulation/accumulate")] == [ops.accumulate.name]
        assert [v.name for v in tf1accum.model_variables()] == [
            "model/w:0", "model/b:0"]


def fingerprint(scope):
    """All ops of the graph that the builder added inside `scope`."""
    with tf.Graph().as_default() as graph:
        model = models.Regression()
        tf.constant(0., name="ambient")
        with scope():
            known = set(graph.get_operations())
            build(model)
        return [(op.name, op.type, op.device, op.colocation_groups(),
                 [t.name for t in op.inputs],
                 sorted(c.name for c in op.control_inputs))
                for op in graph.get_operations() if op not in known], [
                    v.name for v in tf.global_variables()]


@contextlib.contextmanager
def plain():
    yield


def refuse(getter, *args, **kwargs):
    raise AssertionError("an ambient custom_getter was asked")


SCOPES = {
    "reuse": lambda: tf.variable_scope("model", reuse=True),
    "auto_reuse": lambda: tf.variable_scope("model", reuse=tf.AUTO_REUSE),
    "partitioner": lambda: tf.variable_scope(
        "p", partitioner=tf.fixed_size_partitioner(2)),
    "custom_getter": lambda: tf.variable_scope("c", custom_getter=refuse),
    "initializer": lambda: tf.variable_scope(
        "i", initializer=tf.ones_initializer()),
    "name_scope": lambda: tf.name_scope("deep/er"),
    "device": lambda: tf.device("/device:CPU:1"),
    "control_dependencies": lambda: tf.control_dependencies(
        [tf.get_default_graph().get_operation_by_name("ambient")]),
    "caching_device": lambda: tf.variable_scope(
        "d", caching_device="/device:CPU:0"),
    "dtype": lambda: tf.variable_scope("t", dtype=tf.float64),
}


@pytest.mark.parametrize("scope", sorted(SCOPES))
def test_any_ambient_scope_gives_the_same_graph(behaviour, scope):
    assert fingerprint(SCOPES[scope]) == fingerprint(plain)


@pytest.mark.parametrize("scope", [plain] + [
    SCOPES[name] for name in ("reuse", "name_scope", "partitioner")])
def test_slots_of_several_optimizers_never_ask_for_the_same_name(scope):
    model = models.Regression()
    tf.train.AdamOptimizer(name="Adam").minimize(model.loss)
    with scope():
        build(model)
        build(model)
    build(model)
    if scope is plain:
        tf.train.AdamOptimizer().minimize(model.loss)
    names = [v.op.name for v in tf.global_variables()]
    assert len(set(names)) == len(names)
    # Two slots a variable, counted on as TensorFlow itself does.
    optimizers = 5 if scope is plain else 4
    assert {name for name in names if name.startswith("model/w/Adam")} == {
        "model/w/Adam" + ("_%d" % i if i else "")
        for i in range(2 * optimizers)}


def test_the_scripts_own_scopes_keep_their_names():
    """What is built here counts for nobody's default names but the slots'."""
    with tf.variable_scope(None, default_name="layer"):
        model = models.Regression()
    with tf.variable_scope("model", reuse=True):
        build(model)
    build(model)
    with tf.variable_scope(None, default_name="layer") as layer:
        assert layer.name == "layer_1"
    with tf.variable_scope(None, default_name="accumulation") as own:
        assert own.name == "accumulation"


def test_accumulators_are_beside_their_variables():
    with tf.device("/device:CPU:1"):
        model = models.Regression()
    build(model)
    own = [v for v in tf.global_variables()
           if v.op.name.startswith("accumulation/model/")]
    assert [v.device for v in own] == 2 * ["/device:CPU:1"]


@pytest.mark.parametrize("import_scope", [None, "imported"])
def test_a_window_can_be_built_beside_an_imported_one(import_scope):
    """Fine-tuning starts from a MetaGraph that may hold a window."""
    build(models.Regression())
    exported = tf.train.export_meta_graph()
    with tf.Graph().as_default() as graph:
        tf.train.import_meta_graph(exported, import_scope=import_scope)
        w = tf.global_variables()[0]
        loss = tf.reduce_sum(w * w)
        ops = tf1accum.build(loss, [w], optimizer=tf.train.AdamOptimizer(),
                             k=2)
        # Under an import scope too: its variables go by the old names.
        assert ops.name == "accumulation_1"
        names = [op.name for op in graph.get_operations()]
        assert len(set(names)) == len(names)
        with models.session() as session:
            session.run(ops.accumulate)
            session.run(ops.apply_and_reset)


def test_an_optimizers_own_name_scope_stays_in_its_variables_names():
    class Scoped(tf.train.GradientDescentOptimizer):
        def apply_gradients(self, grads_and_vars, *args, **kwargs):
            with tf.name_scope("own"):
                steps = tf.Variable(0., trainable=False, name="steps")
                return tf.group(steps.assign_add(1.), super().apply_gradients(
                    grads_and_vars))

    build(models.Regression(), optimizer=Scoped(0.1))
    assert "own/steps" in [v.op.name for v in tf.global_variables()]


def test_a_colocation_scope_is_left_alone():
    assert fingerprint(lambda: tf.get_default_graph().colocate_with(
        tf.get_default_graph().get_operation_by_name("ambient"))
                       ) == fingerprint(plain)
