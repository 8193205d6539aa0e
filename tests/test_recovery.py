"""Windows that a graph brought: what a program finds in a MetaGraph."""

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import models
import tf1accum
from conftest import in_pairs

K = 3
RATE = 0.1


def build(model, **kwargs):
    settings = dict(optimizer=tf.train.GradientDescentOptimizer(RATE), k=K)
    settings.update(kwargs)
    return tf1accum.build(model.loss, model.variables, **settings)


def carry(graph, how, folder, scope=None):
    """Brings `graph` into the default graph, as other programs do."""
    path = str(folder / ("graph" if how == "meta" else "graph.pb"))
    with graph.as_default():
        if how == "meta":
            tf.train.export_meta_graph(path)
        else:
            tf.io.write_graph(graph, str(folder), "graph.pb", as_text=False)
    if how == "meta":
        tf.train.import_meta_graph(path, import_scope=scope)
        return
    definition = tf.GraphDef()
    with open(path, "rb") as file:
        definition.ParseFromString(file.read())
    tf.import_graph_def(definition, name=scope or "")


def described(ops, prefix=""):
    """What is in a record, by name; `prefix` goes before each."""

    def name(entry):
        if isinstance(entry, (str, int, type(None))):
            return entry
        if isinstance(entry, list):
            return [name(each) for each in entry]
        if hasattr(entry, "indices"):
            return [name(part) for part in (
                entry.values, entry.indices, entry.dense_shape)]
        return prefix + entry.name

    content = {key: name(value) for key, value in vars(ops).items()
               if key != "graph"}
    content["name"] = prefix + ops.name
    return content


@in_pairs
@pytest.mark.parametrize("how", ["meta", "graph_def"])
@pytest.mark.parametrize("scope", [None, "outer/inner"])
def test_a_program_that_did_not_build_it_trains_and_saves(
        behaviour, use_resource, how, scope, graph, tmp_path):
    """k micro-batches and one apply, against NumPy; then a restart."""
    model = models.Regression(use_resource=use_resource)
    build(model)
    batches = model.batches(K)
    prefix = scope + "/" if scope else ""
    with tf.Graph().as_default() as other:
        carry(graph, how, tmp_path, scope)
        ops = tf1accum.recover()
        assert ops.graph is other
        feeds = [{prefix + "model_x:0": x, prefix + "model_y:0": y}
                 for x, y in batches]
        saver, whole = ops.model_saver(), tf1accum.resumable_saver()
        assert sorted(v.op.name for v in tf1accum.model_variables()) == [
            prefix + "model/b", prefix + "model/w"]
        with models.session() as session:
            for variable, start in zip(ops.variables, model.start):
                variable.load(start, session)
            session.run(ops.accumulate, feeds[0])
            path = whole.save(session, str(tmp_path / "whole"))
        with tf.Session() as session:
            whole.restore(session, path)
            for feed in feeds[1:]:
                session.run(ops.accumulate, feed)
            assert session.run(ops.count) == K
            session.run(ops.apply)
            loss = session.run(ops.average_loss)
            session.run(ops.reset)
            assert session.run(ops.count) == 0
            got = session.run(ops.variables)
            path = saver.save(session, str(tmp_path / "model"))
        assert sorted(name for name, _ in tf.train.list_variables(path)) == [
            prefix + "model/b", prefix + "model/w"]
    np.testing.assert_allclose(loss, np.mean([
        model.numpy_loss(model.start, batch) for batch in batches]), rtol=1e-5)
    grads = [model.gradients(model.start, batch) for batch in batches]
    for value, start, grad in zip(got, model.start, zip(*grads)):
        np.testing.assert_allclose(
            value, start - RATE * np.mean(grad, axis=0), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("how", ["meta", "graph_def"])
def test_the_record_is_the_one_that_the_builder_returned(
        how, graph, tmp_path):
    """Sparse rows, weights, a tensor k, skipped micro-batches, update ops."""
    table = tf.get_variable("table", [5, 2], use_resource=True)
    scale = tf.get_variable("scale", [], use_resource=True)
    ids = tf.placeholder(tf.int32, [None])
    update = tf.assign_add(tf.get_variable(
        "moving", [], trainable=False, use_resource=False), 1.)
    ops = tf1accum.build(
        scale * tf.reduce_sum(tf.nn.embedding_lookup(table, ids)),
        optimizer=tf.train.AdamOptimizer(), k=tf.placeholder_with_default(2, []),
        weight=tf.placeholder_with_default(2., []), nonfinite="skip",
        reduction="sum", update_ops=[update.op])
    with tf.Graph().as_default():
        carry(graph, how, tmp_path, "again")
        again = tf1accum.recover()
    assert described(again) == described(ops, "again/")
    assert sorted(isinstance(value, tf.IndexedSlices)
                  for value in again.accumulators) == [False, True]


def test_each_import_has_its_own_windows(graph, tmp_path):
    """Keys of collections are the same then, only entries have a prefix."""
    one, two = models.Regression("one"), models.Regression("two")
    build(one, name="generator")
    build(two, name="critic", k=5)
    with tf.Graph().as_default():
        carry(graph, "meta", tmp_path, "a")
        carry(graph, "meta", tmp_path, "b")
        build(models.Regression("three"), name="critic", k=7)
        found = {name: tf1accum.recover(name=name) for name in (
            "a/generator", "a/critic", "b/generator", "b/critic", "critic_1")}
        assert {name: (ops.name, ops.k, ops.variables[0].op.name)
                for name, ops in found.items()} == {
            "a/generator": ("a/generator", K, "a/one/w"),
            "a/critic": ("a/critic", 5, "a/two/w"),
            "b/generator": ("b/generator", K, "b/one/w"),
            "b/critic": ("b/critic", 5, "b/two/w"),
            "critic_1": ("critic_1", 7, "three/w")}
        assert sorted(v.op.name for v in tf1accum.model_variables()) == sorted(
            scope + name for scope, names in (
                ("a/", ["one/w", "one/b", "two/w", "two/b"]),
                ("b/", ["one/w", "one/b", "two/w", "two/b"]),
                ("", ["three/w", "three/b"])) for name in names)


@pytest.mark.parametrize("optimizer, step", [
    (tf1accum.AccumulatingOptimizer, "accumulation/step"),
    (tf1accum.ports.AccumGradOptimizer, "accumulation/step_and_count")])
def test_a_train_op_is_recovered(optimizer, step, graph, tmp_path):
    model = models.Regression()
    global_step = tf.train.get_or_create_global_step()
    wrapped = optimizer(tf.train.GradientDescentOptimizer(RATE), K)
    train_op = wrapped.minimize(model.loss, global_step)
    assert train_op.name == step
    with tf.Graph().as_default():
        carry(graph, "graph_def", tmp_path)
        ops = tf1accum.recover()
        assert ops.step.name == step
        with models.session() as session:
            for x, y in model.batches(K):
                session.run(ops.step, {"model_x:0": x, "model_y:0": y})
            steps = session.run("global_step:0")
    assert steps == (1 if optimizer is tf1accum.AccumulatingOptimizer else K)


def test_a_hook_drives_a_recovered_window(graph, tmp_path):
    model = models.Regression()
    step = tf.train.get_or_create_global_step()
    k = tf.get_variable("k", initializer=2, trainable=False)
    build(model, k=k, global_step=step)
    with tf.Graph().as_default():
        carry(graph, "meta", tmp_path)
        hook = tf1accum.AccumulationHook(tf1accum.recover())
        with tf.train.MonitoredSession(hooks=[hook]) as session:
            for x, y in model.batches(4):
                session.run([], {"model_x:0": x, "model_y:0": y})
            assert session.run_step_fn(
                lambda step_context: step_context.session.run(
                    "global_step:0")) == 2


def test_what_is_in_a_branch_is_none(behaviour, graph, tmp_path):
    model = models.Regression()
    optimizer = tf1accum.AccumulatingOptimizer(
        tf.train.GradientDescentOptimizer(RATE), K)
    tf.cond(tf.placeholder_with_default(True, []), lambda: tf.group(
        optimizer.minimize(model.loss)), tf.no_op)
    with tf.Graph().as_default():
        carry(graph, "meta", tmp_path)
        ops = tf1accum.recover()
        assert ops.step is None and ops.accumulate is None
        with models.session() as session:
            session.run(ops.apply_and_reset)
            assert session.run(ops.count) == 0


def test_a_window_in_a_collection_of_its_own_is_saved(graph, tmp_path):
    model = models.Regression()
    build(model, collections=["mine"])
    with tf.Graph().as_default():
        carry(graph, "meta", tmp_path)
        ops = tf1accum.recover()
        saver = tf1accum.resumable_saver()
        feed = dict(zip(["model_x:0", "model_y:0"], model.batches(1)[0]))
        with tf.Session() as session:
            session.run([tf.global_variables_initializer(), ops.initializer])
            session.run(ops.accumulate, feed)
            path = saver.save(session, str(tmp_path / "whole"))
        with tf.Session() as session:
            saver.restore(session, path)
            assert session.run(ops.count) == 1


def test_recovering_adds_no_op(graph, tmp_path):
    build(models.Regression(use_resource=False))
    with tf.Graph().as_default() as other:
        carry(graph, "graph_def", tmp_path)
        number = len(other.get_operations())
        before = described(tf1accum.recover())
        assert len(other.get_operations()) == number
        other.finalize()
        listed = tf.global_variables()
        assert described(tf1accum.recover(other)) == before
        assert tf.global_variables() == listed


def test_an_unknown_name_is_told_what_is_there():
    with pytest.raises(ValueError) as error:
        tf1accum.recover()
    assert "tf1accum.recover: name must be that of a window" in str(error.value)
    assert "got None. In the graph: none" in str(error.value)
    build(models.Regression("one"))
    build(models.Regression("two"), name="other")
    tf.constant("{}", name="somebody/record")
    tf.constant('{"name": "elses", "tf1accum": 1}', name="somebody_/record")
    tf.constant([1], name="number/record")
    for name in (None, "count"):
        with pytest.raises(ValueError) as error:
            tf1accum.recover(name=name)
        assert str(error.value).endswith(
            "got {!r}. In the graph: 'accumulation', 'other'.".format(name))


def test_other_arguments_are_refused():
    for arguments in (("accumulation",), (None, 3), (None, ["a"])):
        with pytest.raises(TypeError) as error:
            tf1accum.recover(*arguments)
        assert str(error.value).startswith(
            "tf1accum.recover: graph must be a tf.Graph and name a string")


def test_windows_of_one_graph_def_are_known_together(graph, tmp_path):
    for name in ("one", "two"):
        build(models.Regression(name), name=name + "_window",
              optimizer=tf.train.AdamOptimizer())
    with tf.Graph().as_default():
        carry(graph, "graph_def", tmp_path)
        assert tf1accum.recover(name="one_window").k == K
        assert sorted(v.op.name for v in tf1accum.model_variables()) == [
            "one/b", "one/w", "two/b", "two/w"]


def run_of_two(names):
    """What is in two windows once the first has had a micro-batch."""
    one, two = [tf1accum.recover(name=name) for name in names]
    prefix = names[0].rpartition("accumulation")[0]
    with models.session() as session:
        x, y = models.Regression("unused").batches(1)[0]
        session.run(one.accumulate, {
            prefix + "model_x:0": x, prefix + "model_y:0": y})
        return session.run([one.count, two.count])


def test_two_imports_share_all_or_are_refused(behaviour, graph, tmp_path):
    """TensorFlow shares resource variables of two imports, and no others."""
    build(models.Regression(use_resource=True))
    names = ["a/accumulation", "b/accumulation"]
    with tf.Graph().as_default():
        for scope in "ab":
            carry(graph, "meta", tmp_path, scope)
        assert run_of_two(names) == [1, 1]
    with tf.Graph().as_default() as graph:
        build(models.Regression(use_resource=False))
    with tf.Graph().as_default():
        for scope in "ab":
            carry(graph, "meta", tmp_path, scope)
        with pytest.raises(ValueError) as error:
            run_of_two(names)
        assert ("those of 'a/accumulation' are also those of another import or "
                "build, while a/model/w is not (a/accumulation/count goes by "
                "the name 'accumulation/count' twice)" in str(error.value))


def test_a_window_beside_an_imported_one_is_its_own(
        use_resource, graph, tmp_path):
    build(models.Regression(use_resource=use_resource))
    with tf.Graph().as_default():
        carry(graph, "meta", tmp_path, "a")
        build(models.Regression("other", use_resource=use_resource))
        assert run_of_two(["a/accumulation", "accumulation_1"]) == [1, 0]


def test_a_graph_that_lost_a_part_says_which(graph):
    build(models.Regression())
    definition = tf.graph_util.extract_sub_graph(
        graph.as_graph_def(), ["accumulation/record", "accumulation/apply"])
    with tf.Graph().as_default():
        tf.import_graph_def(definition, name="")
        with pytest.raises(ValueError) as error:
            tf1accum.recover()
    assert "the graph must hold all of the window 'accumulation'" in str(
        error.value)
    assert "accumulation/read/model/w" in str(error.value)


def test_a_graph_def_is_recovered_before_the_graph_is_finalized(
        graph, tmp_path):
    build(models.Regression())
    with tf.Graph().as_default() as other:
        carry(graph, "graph_def", tmp_path)
        other.finalize()
        with pytest.raises(RuntimeError) as error:
            tf1accum.recover()
    assert "Recover 'accumulation' once before that." in str(error.value)
