"""`python -m tf1accum strip`: what stays, what goes, and how it is written."""

import contextlib
import os
import resource
import signal
import subprocess
import sys

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import checkpoints
import models
import tf1accum
from checkpoints import zeros
from tf1accum import checkpoint_files
from tf1accum import stripping

ROOT = os.path.dirname(os.path.dirname(tf1accum.__file__))


def strip(path, name="by_graph"):
    """The keys of the copy of `path`, whose values are the original's."""
    out = "{}-{}".format(path, name)
    assert checkpoints.run("strip", path, out) == 0
    kept = checkpoints.keys(out)
    before = checkpoints.values(path)
    models.assert_same_bits(
        {name: before[name] for name in kept}, checkpoints.values(out))
    return kept


def strip_by_structure(path):
    """The same, where no graph is beside it."""
    checkpoints.forget_the_graph(path)
    return strip(path, "by_structure")


def strip_both_ways(path):
    """The same, where the graph and the structure say the same."""
    kept = strip(path)
    assert strip_by_structure(path) == kept
    return kept


def model_with_traps(use_resource):
    """A model with all that belongs to one, under names that mislead."""
    model = models.Regression("Adam_layer", use_resource)
    others = [
        tf.get_variable("Variable_scale", [2], use_resource=use_resource),
        tf.get_variable("accumulation_gate", [2], use_resource=use_resource),
        tf.get_variable("bn/moving_mean", [2], trainable=False,
                        use_resource=use_resource),
        tf.get_variable("beta1_power_of_two", [], trainable=False,
                        use_resource=use_resource),
        tf.get_variable("momentum", [3, 2], trainable=False,
                        use_resource=use_resource)]
    step = tf.train.get_or_create_global_step()
    names = sorted(v.op.name for v in model.variables + others + [step])
    return model, step, names


@pytest.mark.parametrize("optimizer", sorted(models.OPTIMIZERS))
def test_slots_and_scalars_of_every_optimizer_go(
        use_resource, optimizer, tmp_path):
    """Rows D2, D3, D4 and D6."""
    model, step, names = model_with_traps(use_resource)
    models.OPTIMIZERS[optimizer]().minimize(model.loss, step)
    path = checkpoints.save(tmp_path / "model")
    assert strip_both_ways(path) == names


@pytest.mark.parametrize("kwargs", [
    {}, {"nonfinite": "skip", "reduction": "sum", "name": "mine"}])
def test_a_window_goes(behaviour, kwargs, tmp_path):
    """Row D3."""
    model, step, names = model_with_traps(True)
    table = tf.get_variable("table", [5, 2])
    parts = tf.get_variable("parts", [6, 2],
                            partitioner=tf.fixed_size_partitioner(3))
    loss = model.loss + tf.reduce_sum(
        tf.nn.embedding_lookup(table, [1, 1, 3])) + tf.reduce_sum(
            tf.square(tf.convert_to_tensor(parts)))
    ops = tf1accum.build(
        loss, optimizer=tf.train.AdamOptimizer(), k=2, global_step=step,
        weight=tf.constant(2.), **kwargs)
    saver = tf.train.Saver()
    with models.session() as session:
        for batch in model.batches(3):
            session.run(ops.accumulate, model.feed(batch))
        path = saver.save(session, str(tmp_path / "model"))
    assert strip_both_ways(path) == sorted(names + ["table", "parts"])


def test_a_graph_without_collections_says_it_by_its_record(tmp_path):
    model, step, names = model_with_traps(True)
    checkpoints.build_adam(model, global_step=step)
    path = checkpoints.save(tmp_path / "model")
    checkpoints.forget_the_graph(path)
    tf.io.write_graph(tf.get_default_graph(), str(tmp_path), "graph.pbtxt")
    assert checkpoints.run("strip", path, tmp_path / "out", "--meta-graph",
                           tmp_path / "graph.pbtxt") == 0
    assert checkpoints.keys(tmp_path / "out") == names


def test_a_window_that_was_imported_under_a_scope_goes(tmp_path):
    model = models.Regression("model")
    checkpoints.build_adam(model)
    exported = tf.train.export_meta_graph()
    with tf.Graph().as_default():
        tf.train.import_meta_graph(exported, import_scope="outer/inner")
        path = checkpoints.save(tmp_path / "model")
    assert strip_both_ways(path) == ["outer/inner/model/b",
                                     "outer/inner/model/w"]


@pytest.mark.parametrize("minimize", [
    lambda optimizer, loss: tf1accum.build_host(loss, optimizer=optimizer),
    lambda optimizer, loss: tf1accum.AccumulatingOptimizer(
        optimizer, 2).minimize(loss),
    lambda optimizer, loss: tf1accum.ports.AccumGradOptimizer(
        optimizer, 2).minimize(loss),
], ids=["host", "optimizer", "port"])
def test_what_other_builders_add_goes(minimize, tmp_path):
    model = models.Regression("model")
    minimize(tf.train.AdamOptimizer(), model.loss)
    path = checkpoints.save(tmp_path / "model")
    assert strip_both_ways(path) == ["model/b", "model/w"]


def recipe(model, transform=lambda mean: mean):
    """The recipe, with accumulators that are called `Variable`, and so on."""
    optimizer = tf.train.AdamOptimizer()
    accumulators = [
        tf.Variable(tf.zeros(variable.shape), trainable=False)
        for variable in model.variables]
    pairs = optimizer.compute_gradients(model.loss, model.variables)
    for accumulator, (grad, _) in zip(accumulators, pairs):
        accumulator.assign_add(grad / 4.)
    means = transform([tf.identity(each) for each in accumulators])
    optimizer.apply_gradients(zip(means, model.variables))
    return accumulators


@pytest.mark.parametrize("transform", [
    lambda means: means,
    lambda means: [mean / 2. + 1e-4 for mean in means],
    lambda means: tf.clip_by_global_norm(means, 1.)[0],
    lambda means: [tf.clip_by_norm(mean, 1.) for mean in means],
    lambda means: [tf.clip_by_value(mean, -1., 1.) for mean in means],
], ids=["as is", "scaled", "global norm", "norm", "value"])
def test_accumulators_of_any_name_go_by_the_graph(
        behaviour, transform, tmp_path):
    """Row D9."""
    model, _, names = model_with_traps(behaviour != "v1")
    accumulators = recipe(model, transform)
    assert [each.op.name for each in accumulators] == [
        "Variable", "Variable_1"]
    path = checkpoints.save(tmp_path / "model")
    assert strip(path) == names


def test_without_a_graph_a_variable_of_no_telling_name_stays(tmp_path):
    """Row D9: nothing but the graph says what `Variable` is."""
    model, _, names = model_with_traps(False)
    recipe(model)
    path = checkpoints.save(tmp_path / "model")
    assert strip_by_structure(path) == sorted(
        names + ["Variable", "Variable_1"])


def test_the_accumulators_of_plain_updates_go(use_resource, tmp_path):
    """Row D8: an optimizer made of plain ops, with accumulators before it."""
    model = models.Regression("model", use_resource)
    for variable, grad in zip(model.variables,
                              tf.gradients(model.loss, model.variables)):
        def made(name):
            return tf.get_variable(
                variable.op.name + "/" + name, variable.shape, trainable=False,
                initializer=tf.zeros_initializer(), use_resource=use_resource)

        total, m, v = made("accum"), made("adam_m"), made("adam_v")
        total.assign_add(grad)
        next_m = 0.9 * m + 0.1 * total
        next_v = 0.999 * v + 0.001 * tf.square(total)
        variable.assign(variable - 0.1 * next_m / (tf.sqrt(next_v) + 1e-6))
        m.assign(next_m)
        v.assign(next_v)
    path = checkpoints.save(tmp_path / "model")
    assert strip(path) == ["model/b", "model/w"]


@pytest.mark.parametrize("scope", [None, "train"])
def test_slots_of_lookups_go_where_no_apply_op_is(
        use_resource, scope, tmp_path):
    """Adam on rows is made of plain ops, and its slots may be in a scope."""
    with tf.variable_scope("model", use_resource=use_resource):
        table = tf.get_variable("table", [5, 2])
    loss = tf.reduce_sum(tf.square(tf.nn.embedding_lookup(table, [1, 3])))
    with tf.variable_scope(scope or tf.get_variable_scope()):
        tf.train.AdamOptimizer().minimize(loss)
    path = checkpoints.save(tmp_path / "model")
    assert len(checkpoints.keys(path)) == 5
    assert strip(path) == ["model/table"]


def test_moving_averages_stay(behaviour, tmp_path):
    """Also where they are put in place of the weights."""
    model = models.Regression("model", behaviour != "v1")
    train = tf.train.AdamOptimizer().minimize(model.loss)
    average = tf.train.ExponentialMovingAverage(0.9)
    with tf.control_dependencies([train]):
        average.apply(model.variables)
    for variable in model.variables:
        variable.assign(average.average(variable))
    path = checkpoints.save(tmp_path / "model")
    assert strip_both_ways(path) == sorted(
        "model/" + name + end for name in "wb"
        for end in ("", "/ExponentialMovingAverage"))


def test_an_average_of_another_name_stays_by_the_graph(
        use_resource, tmp_path):
    model = models.Regression("model", use_resource)
    tf.train.AdamOptimizer().minimize(model.loss)
    average = tf.train.ExponentialMovingAverage(0.9, name="Mean")
    average.apply(model.variables)
    for variable in model.variables:
        # Put in place, corrected for its start at 0.
        variable.assign(average.average(variable) / 0.9)
    path = checkpoints.save(tmp_path / "model")
    assert strip(path) == ["model/b", "model/b/Mean", "model/w", "model/w/Mean"]


def test_an_average_put_in_place_stays_beside_plain_updates(
        use_resource, tmp_path):
    model = models.Regression("model", use_resource)
    average = tf.train.ExponentialMovingAverage(0.9, name="Mean")
    for variable, grad in zip(model.variables,
                              tf.gradients(model.loss, model.variables)):
        variable.assign_sub(0.1 * grad)
    average.apply(model.variables)
    for variable in model.variables:
        variable.assign(average.average(variable))
    path = checkpoints.save(tmp_path / "model")
    assert strip(path) == ["model/b", "model/b/Mean", "model/w", "model/w/Mean"]


def test_what_the_loss_reads_stays_though_it_is_added_to(
        use_resource, tmp_path):
    """A frozen statistic, a count for each class, and a schedule's counter."""
    model = models.Regression("model", use_resource)
    with tf.variable_scope("", use_resource=use_resource):
        mean = tf.get_variable("bn/moving_mean", [2], trainable=False)
        counts = tf.get_variable("counts", [2], trainable=False)
        scale = tf.get_variable("scale", [])
        rate = tf.get_variable("rate", [], trainable=False)
        step = tf.get_variable("step", [], trainable=False)
    mean.assign_sub(0.1 * (mean - tf.reduce_mean(model.y, 0)))
    counts.assign_add(tf.reduce_sum(model.y, 0))
    step.assign_add(1.)
    loss = model.loss + scale * tf.reduce_mean(
        (model.y - mean + model.b) / (1. + tf.gather(counts, [0])))
    tf.train.AdamOptimizer(rate / (1. + step)).minimize(loss)
    path = checkpoints.save(tmp_path / "model")
    assert strip(path) == ["bn/moving_mean", "counts", "model/b", "model/w",
                           "rate", "scale", "step"]


def test_a_variable_that_is_a_rate_is_no_slot(use_resource, tmp_path):
    model = models.Regression("model", use_resource)
    rate = tf.get_variable("rate", [], trainable=False,
                           use_resource=use_resource)
    tf.train.AdamOptimizer(rate).minimize(model.loss)
    path = checkpoints.save(tmp_path / "model")
    assert strip(path) == ["model/b", "model/w", "rate"]


def test_in_a_function_the_structure_decides(tmp_path):
    """Apply ops of a branch are not among the nodes of the graph."""
    tf.enable_control_flow_v2()
    model = models.Regression("model", True)
    optimizer = tf.train.AdamOptimizer()
    pairs = optimizer.compute_gradients(model.loss, model.variables)
    tf.cond(tf.placeholder_with_default(True, []),
            lambda: tf.group(optimizer.apply_gradients(pairs)), tf.no_op)
    path = checkpoints.save(tmp_path / "model")
    assert len(checkpoints.keys(path)) == 8
    assert strip(path) == ["model/b", "model/w"]


def test_trained_variables_stay_though_they_look_like_slots(tmp_path):
    model = models.Regression("model")
    tf.get_variable("model/w/mask", [3, 2])
    tf.get_variable("beta1_power", [])
    path = checkpoints.save(tmp_path / "model")
    assert strip(path) == ["beta1_power", "model/b", "model/w", "model/w/mask"]
    assert model.variables


def test_partitioned_variables_stay_and_become_whole(
        use_resource, tmp_path):
    with tf.variable_scope("model", use_resource=use_resource):
        parts = tf.get_variable("w", [5, 2],
                                partitioner=tf.fixed_size_partitioner(2))
    tf.train.AdamOptimizer().minimize(
        tf.reduce_sum(tf.square(tf.convert_to_tensor(parts))))
    path = checkpoints.save(tmp_path / "model")
    assert checkpoints.keys(path) == [
        "beta1_power", "beta2_power", "model/w", "model/w/Adam",
        "model/w/Adam_1"]
    assert strip_both_ways(path) == ["model/w"]
    with tf.Session() as session:
        tf.train.Saver({"model/w": parts}).restore(session, path + "-by_graph")
        np.testing.assert_array_equal(
            np.concatenate(session.run(list(parts))),
            checkpoints.values(path)["model/w"])


def test_keys_that_a_saver_renamed_are_found_by_what_it_saves(
        use_resource, tmp_path):
    model = models.Regression("model", use_resource)
    adam = tf.train.AdamOptimizer()
    adam.minimize(model.loss)
    power, = [variable for variable in tf.global_variables()
              if variable.op.name == "beta1_power"]
    path = checkpoints.save(tmp_path / "model", var_list={
        "renamed": model.w, "beta1_power": model.b, "power": power,
        "first": adam.get_slot(model.w, "m"),
        "second": adam.get_slot(model.w, "v")})
    assert strip(path) == ["beta1_power", "renamed"]


def test_a_key_that_one_saver_has_for_a_weight_stays(tmp_path):
    model = models.Regression("model")
    adam = tf.train.AdamOptimizer()
    adam.minimize(model.loss)
    tf.train.Saver({"both": adam.get_slot(model.w, "m")})
    path = checkpoints.save(tmp_path / "model", var_list={
        "both": model.w, "slot": adam.get_slot(model.w, "v")})
    assert strip(path) == ["both"]


KEYS = [
    # (what it shows, keys, of them what stays)
    ("a key under another of its shape goes",
     {"w": zeros(2, 3), "w/Adam": zeros(2, 3), "w/a/b": zeros(2, 3)}, ["w"]),
    ("a key under another of another shape stays",
     {"w": zeros(2, 3), "w/Adam": zeros(3), "Adam": zeros(2, 3)},
     ["Adam", "w", "w/Adam"]),
    ("a key beside one of its shape stays",
     {"w": zeros(2), "w_Adam": zeros(2), "w_1": zeros(2)},
     ["w", "w_1", "w_Adam"]),
    ("scalars go by their exact names alone",
     {"w": zeros(2), "beta1_power": zeros(), "s/beta2_power_12": zeros(),
      "beta1_power_x": zeros(), "my_beta1_power": zeros(),
      "t/beta1_power": zeros(1), "beta3_power": zeros()},
     ["beta1_power_x", "beta3_power", "my_beta1_power", "t/beta1_power", "w"]),
    ("a window goes",
     {"a/w": zeros(2), "R/count": np.int64(1), "R/a/w": zeros(2),
      "R/weight": np.float64(1), "R/skipped": np.int64(1),
      "R/average_loss": zeros()}, ["a/w"]),
    ("a window in a scope goes",
     {"s/w": zeros(2), "s/R/count": np.int64(1), "s/R/w": zeros(2)}, ["s/w"]),
    ("a sparse one goes",
     {"t": zeros(9, 2), "R/count": np.int64(1), "R/t/values": zeros(4, 2),
      "R/t/indices": zeros(4, dtype=np.int64), "R/t/used": np.int64(3)},
     ["t"]),
    ("one of a partitioned variable goes",
     {"w": zeros(5, 2), "R/count": np.int64(1), "R/w/part_0": zeros(3, 2),
      "R/w/part_1": zeros(2, 2)}, ["w"]),
    ("what has more than a window has stays",
     {"w": zeros(2), "R/count": np.int64(1), "R/w": zeros(2), "R/b": zeros(2)},
     ["R/b", "R/count", "R/w", "w"]),
    ("what has a count of another kind stays",
     {"w": zeros(2), "R/count": np.int32(1), "R/w": zeros(2)},
     ["R/count", "R/w", "w"]),
    ("rows of another width stay",
     {"t": zeros(9, 2), "R/count": np.int64(1), "R/t/values": zeros(4, 3),
      "R/t/indices": zeros(4, dtype=np.int64), "R/t/used": np.int64(3)},
     ["R/count", "R/t/indices", "R/t/used", "R/t/values", "t"]),
]


@pytest.mark.parametrize("keys, kept", [case[1:] for case in KEYS],
                         ids=[case[0] for case in KEYS])
def test_structure(keys, kept, tmp_path):
    checkpoints.write_raw(tmp_path / "model", keys)
    assert checkpoints.run("strip", tmp_path / "model", tmp_path / "out") == 0
    assert checkpoints.keys(tmp_path / "out") == kept


def test_every_dtype_is_copied_bit_by_bit(tmp_path, monkeypatch):
    monkeypatch.setattr(stripping, "_GROUP", 40)
    random = np.random.RandomState(0)
    arrays = {dtype.name: random.randint(0, 2, [3, 2]).astype(
        dtype.as_numpy_dtype) for dtype in (
            tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.int8, tf.uint8,
            tf.int16, tf.uint16, tf.int32, tf.int64, tf.bool, tf.complex64,
            tf.complex128)}
    arrays["float32"][0] = [np.nan, -0.]
    arrays["float32"].view(np.uint32)[1, 0] = 0x7fc12345
    arrays["text"] = np.array([b"", b"\xff\x00", b"long" * 99], object)
    arrays["nothing"] = zeros(0, 4)
    arrays["scalar"] = np.int64(-1)
    checkpoints.write_raw(tmp_path / "model", arrays)
    assert checkpoints.run("strip", tmp_path / "model", tmp_path / "out") == 0
    copied = checkpoints.values(tmp_path / "out")
    assert sorted(copied) == sorted(arrays)
    for name, array in arrays.items():
        if array.dtype == object:
            assert copied[name].tolist() == array.tolist()
        else:
            assert copied[name].dtype == array.dtype
            assert copied[name].tobytes() == array.tobytes()
    assert len(list(tmp_path.glob("out.data-*"))) > 3


def test_with_adam_and_a_window_a_quarter_is_left(tmp_path):
    """Row D3: at most 1.02 times the model's own bytes."""
    model = models.Regression("model", features=200, outputs=100)
    checkpoints.build_adam(model)
    path = checkpoints.save(tmp_path / "model")
    strip(path)
    own = 4 * (200 * 100 + 100)
    size = {name: sum(file.stat().st_size for file in tmp_path.iterdir()
                      if file.name in (name + ".index",
                                       name + ".data-00000-of-00001"))
            for name in ("model", "model-by_graph")}
    assert size["model"] > 4 * own
    assert size["model-by_graph"] <= 1.02 * own


def test_a_dry_run_lists_what_stays_and_goes_and_writes_nothing(
        tmp_path, capsys):
    checkpoints.write_raw(tmp_path / "model", {
        "w": zeros(2, 3), "w/Adam": zeros(2, 3), "beta1_power": zeros()})
    before = checkpoints.content(tmp_path)
    assert checkpoints.run("strip", tmp_path / "model", "--dry-run") == 0
    assert capsys.readouterr().out.splitlines() == [
        "judged by the structure of the keys; --meta-graph FILE makes sure",
        "    stays  w            float32  [2, 3]  24 B  a key of its own",
        "    goes   beta1_power  float32  []      4 B   looks like an "
        "optimizer's scalar: by its exact name",
        "    goes   w/Adam       float32  [2, 3]  24 B  looks like a slot of "
        "w: of its shape, under its name",
        "stays: 1 key of 24 B",
        "goes: 2 keys of 28 B"]
    assert checkpoints.content(tmp_path) == before


def test_the_original_and_its_folder_are_as_before(tmp_path):
    model = models.Regression("model")
    tf.train.AdamOptimizer().minimize(model.loss)
    saver = tf.train.Saver()
    with models.session() as session:
        saver.save(session, str(tmp_path / "model"), global_step=7)
    before = checkpoints.content(tmp_path)
    assert "checkpoint" in before
    # Its index names it as well.
    assert checkpoints.run("strip", tmp_path / "model-7.index",
                           tmp_path / "out") == 0
    after = checkpoints.content(tmp_path)
    assert sorted(set(after) - set(before)) == [
        "out.data-00000-of-00001", "out.index"]
    assert {name: after[name] for name in before} == before


def test_a_file_of_the_old_format_is_read(tmp_path):
    model = models.Regression("model")
    tf.train.AdamOptimizer().minimize(model.loss)
    path = checkpoints.save(
        tmp_path / "model", write_version=tf.train.SaverDef.V1)
    assert not os.path.exists(path + ".index")
    assert strip(path) == ["model/b", "model/w"]


def original(tmp_path):
    path = tmp_path / "in" / "model"
    path.parent.mkdir()
    checkpoints.write_raw(path, {"w": zeros(2, 3), "w/Adam": zeros(2, 3),
                                 "x": zeros(50)})
    return path


def cut(path, size):
    with open(str(path), "r+b") as file:
        file.truncate(size)


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(bytes(data))


def data_of(path):
    return path.with_name("model.data-00000-of-00001")


def index_of(path):
    return path.with_name("model.index")


def only_state(path):
    checkpoints.write_raw(path, {"beta1_power": zeros()})


def object_based(path):
    checkpoints.write_raw(path, {"_CHECKPOINTABLE_OBJECT_GRAPH": b""})


TROUBLE = [
    # (what is wrong, how to bring it about, words of the error)
    ("no such file", lambda path: index_of(path).unlink() or data_of(
        path).unlink(), "model.index is missing: there is no checkpoint"),
    ("no index", lambda path: index_of(path).unlink(),
     "model.index is missing, which says what the data files hold."),
    ("no data", lambda path: data_of(path).unlink(),
     "the data of {path} is missing: there is no {path}.data-00000-of-00001"),
    ("a missing shard", lambda path: data_of(path).rename(
        path.with_name("model.data-00001-of-00002")),
     "a shard of {path} is missing: {path}.data-00000-of-00002."),
    ("an empty index", lambda path: cut(index_of(path), 0), "is empty."),
    ("a short index", lambda path: cut(index_of(path), 90),
     "model.index is not a checkpoint, or is damaged: "),
    ("a damaged index", lambda path: flip(index_of(path), 20),
     "model.index is not a checkpoint, or is damaged: "),
    ("a foreign index", lambda path: index_of(path).write_text("hello" * 99),
     "model.index is not a checkpoint, or is damaged: "),
    ("a folder as index", lambda path: index_of(path).unlink() or index_of(
        path).mkdir(), "model.index cannot be read: Is a directory."),
    ("a dangling index", lambda path: index_of(path).unlink() or index_of(
        path).symlink_to("gone"),
     "model.index cannot be read: No such file or directory."),
    ("short data", lambda path: cut(data_of(path), 100),
     "the data of {path} is cut off or damaged, at x: "),
    ("damaged data", lambda path: flip(data_of(path), 60),
     "{path} could not be copied to {out}: {checksum}"),
    ("a foreign graph", lambda path: path.with_name(
        "model.meta").write_bytes(b"\x89PNG\r\n\x1a\n\0\0"),
     "model.meta is not a MetaGraph or a GraphDef, or is damaged. Give strip "
     "the right one by --meta-graph FILE, or move {path}.meta away: then the "
     "structure of the keys decides."),
    ("a folder as data", lambda path: data_of(path).unlink() or data_of(
        path).mkdir(), "model.data-00000-of-00001 cannot be read: Is a dir"),
    ("nothing of a model", only_state, "{path} holds nothing of the model"),
    ("a file of objects", object_based, "was written by tf.train.Checkpoint"),
]


@pytest.mark.parametrize("harm, words", [case[1:] for case in TROUBLE],
                         ids=[case[0] for case in TROUBLE])
def test_trouble_with_the_original_is_one_line(harm, words, tmp_path, capsys):
    path = original(tmp_path)
    harm(path)
    out = tmp_path / "out" / "model"
    out.parent.mkdir()
    before = checkpoints.content(tmp_path)
    # A dry run reads no data.
    for more in [] if "{checksum}" in words else [["--dry-run"]]:
        assert checkpoints.run("strip", path, *more) == 1
        assert_one_line(capsys, words.format(path=path))
    assert checkpoints.run("strip", path, out) == 1
    error = assert_one_line(capsys, words.partition("{checksum}")[0].format(
        path=path, out=out))
    assert "{checksum}" not in words or "Checksum does not match" in error
    assert checkpoints.content(tmp_path) == before
    assert not list(out.parent.iterdir())


def assert_one_line(capsys, words):
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("tf1accum: ") and words in printed.err
    assert len(printed.err.splitlines()) == 1
    return printed.err


def linked(path):
    path.parent.with_name("link").symlink_to(path.parent)
    return path.parent.with_name("link") / "model"


OUT = [
    ("itself", lambda path: path, "is the original, which is never"),
    ("its index", index_of, "is the original, which is never"),
    ("itself by a link", linked, "is the original, which is never"),
    ("itself by another way", lambda path: path.parent / ".." / "in" / "model",
     "is the original, which is never"),
    ("an index", lambda path: path.with_name("other.index").touch()
     or path.with_name("other"), "other.index exists already."),
    ("data", lambda path: path.with_name("other.data-00000-of-00002").touch()
     or path.with_name("other"), "other.data-00000-of-00002 exists already."),
    ("a file", lambda path: path.with_name("other").touch()
     or path.with_name("other"), "other exists already."),
    ("a graph", lambda path: path.with_name("other.meta").touch()
     or path.with_name("other"), "other.meta exists already."),
    ("another index", lambda path: path.with_name("other.index"),
     "/other.index is a name of a checkpoint's file. Name its prefix"),
    ("another meta", lambda path: path.with_name("other.meta"),
     "/other.meta is a name of a checkpoint's file. Name its prefix"),
    ("a folder", lambda path: path.parent, "/in is a folder. Name the copy"),
    ("a missing folder", lambda path: path.parent / "gone" / "model",
     "/in/gone does not exist. Make it first."),
    ("a file as folder", lambda path: index_of(path) / "model",
     "does not exist. Make it first."),
]


@pytest.mark.parametrize("find_out, words", [case[1:] for case in OUT],
                         ids=[case[0] for case in OUT])
def test_where_a_copy_cannot_be_is_said_in_one_line(
        find_out, words, tmp_path, capsys):
    path = original(tmp_path)
    out = find_out(path)
    before = checkpoints.content(tmp_path)
    for more in [], ["--dry-run"]:
        assert checkpoints.run("strip", path, out, *more) == 1
        assert_one_line(capsys, words)
    assert checkpoints.content(tmp_path) == before


def test_a_copy_beside_the_program_needs_no_folder(tmp_path, monkeypatch):
    path = original(tmp_path)
    monkeypatch.chdir(str(tmp_path))
    assert checkpoints.run("strip", "in/model", "copy") == 0
    assert sorted(name for name in os.listdir(".")) == [
        "copy.data-00000-of-00001", "copy.index", "in"]
    assert checkpoints.keys(path) == ["w", "w/Adam", "x"]


@contextlib.contextmanager
def files_of_at_most(size):
    """What a full disk looks like to the program that writes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(stripping, "_GROUP", 1000)
    checkpoints.write_raw(tmp_path / "model", {
        "a": zeros(20000), "b": zeros(99000)})
    before = checkpoints.content(tmp_path)
    with files_of_at_most(100000):
        status = checkpoints.run("strip", tmp_path / "model", tmp_path / "out")
    assert status == 1
    assert_one_line(capsys, "could not be copied to {}: ".format(
        tmp_path / "out"))
    assert checkpoints.content(tmp_path) == before
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("number, status", [
    (signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.parametrize("end", [".data-00000-of-00001", ".index"])
def test_a_signal_leaves_nothing(
        number, status, end, tmp_path, monkeypatch, capsys):
    """It comes when this file is about to be moved."""
    path = original(tmp_path)
    before = checkpoints.content(tmp_path)
    handler = signal.getsignal(number)
    rename = os.rename

    def signalled(source, target):
        if target.endswith(end):
            os.kill(os.getpid(), number)
        rename(source, target)

    monkeypatch.setattr(os, "rename", signalled)
    assert checkpoints.run("strip", path, tmp_path / "out") == status
    assert_one_line(capsys, "stopped; nothing was left behind.")
    assert checkpoints.content(tmp_path) == before
    assert os.listdir(str(tmp_path)) == ["in"]
    assert signal.getsignal(number) is handler


def test_the_index_comes_last(tmp_path, monkeypatch):
    path = original(tmp_path)
    moved = []
    rename = os.rename

    def recording(source, target):
        moved.append(os.path.basename(target))
        rename(source, target)

    monkeypatch.setattr(stripping, "_GROUP", 30)
    monkeypatch.setattr(os, "rename", recording)
    assert checkpoints.run("strip", path, tmp_path / "out") == 0
    assert moved == ["out.data-00000-of-00002", "out.data-00001-of-00002",
                     "out.index"]


@pytest.mark.parametrize("argv", [
    [], ["strip"], ["strip", "in"], ["inspect"], ["strip", "a", "b", "c"],
    ["grow", "a"], ["inspect", "a", "--yaml"], ["inspect", ""],
    ["strip", "", "a"], ["strip", "a", ""],
    ["strip", "a", "b", "--meta-graph="]])
def test_a_wrong_command_line_is_2(argv, capsys):
    with pytest.raises(SystemExit) as error:
        checkpoints.run(*argv)
    assert error.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith(
        "python -m tf1accum")


@pytest.mark.parametrize("argv", [["--help"], ["inspect", "-h"],
                                  ["strip", "-h"]])
def test_help_says_what_the_status_means(argv, capsys):
    with pytest.raises(SystemExit) as error:
        checkpoints.run(*argv)
    assert error.value.code == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "exit status: 0 if all is well" in printed
    assert "128 and its number where a signal ended it" in printed
    assert argv[0] != "strip" or (
        "killed leaves a folder .tf1accum-strip-* beside OUT" in printed)


def test_it_runs_as_a_program_away_from_any_session(tmp_path):
    path = original(tmp_path)
    child = subprocess.run(
        [sys.executable, "-m", "tf1accum", "strip", str(path),
         str(tmp_path / "out")], stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, universal_newlines=True,
        env=dict(os.environ, PYTHONPATH=ROOT))
    assert child.returncode == 0, child.stderr
    assert child.stdout.splitlines() == [
        "judged by the structure of the keys; --meta-graph FILE makes sure",
        "    goes  w/Adam  float32  [2, 3]  24 B  looks like a slot of w: of "
        "its shape, under its name",
        "stays: 2 keys of 224 B", "goes: 1 key of 24 B",
        "wrote {}".format(tmp_path / "out")]
    assert checkpoints.keys(tmp_path / "out") == ["w", "x"]
    assert checkpoint_files.is_checkpoint(str(tmp_path / "out"))


def trained(path):
    """A checkpoint of a model with Adam, and the MetaGraph beside it."""
    with tf.Graph().as_default():
        model = models.Regression("model")
        tf.train.AdamOptimizer().minimize(model.loss)
        return checkpoints.save(path)


def test_a_copy_by_the_graph_says_so_and_what_was_written(tmp_path, capsys):
    path = trained(tmp_path / "model")
    assert checkpoints.run("strip", path, tmp_path / "out") == 0
    assert capsys.readouterr().out.splitlines() == [
        "judged by the graph in {}.meta".format(path),
        "stays: 2 keys of 32 B", "goes: 6 keys of 72 B",
        "wrote {}".format(tmp_path / "out")]


def test_keys_that_the_graph_lacks_are_said_to_be_guesses(tmp_path, capsys):
    path = trained(tmp_path / "model")
    arrays = checkpoints.values(path)
    arrays.update({"x": zeros(3), "x/Adam": zeros(3)})
    checkpoints.write_raw(path, arrays)
    assert checkpoints.run("strip", path, tmp_path / "out") == 0
    assert capsys.readouterr().out.splitlines() == [
        "judged by the graph in {}.meta".format(path),
        "judged by the structure of the keys, as that graph does not tell",
        "    stays  x       float32  [3]  12 B  a key of its own",
        "    goes   x/Adam  float32  [3]  12 B  looks like a slot of x: of "
        "its shape, under its name",
        "stays: 3 keys of 44 B", "goes: 7 keys of 84 B",
        "wrote {}".format(tmp_path / "out")]


def events(path):
    with tf.Graph().as_default() as graph:
        models.Regression("model")
        with tf.summary.FileWriter(str(path.parent / "log"), graph):
            pass
    written, = (path.parent / "log").iterdir()
    return written


def without_graph(path):
    checkpoints.write_raw(path.with_name("alone"), {"w": zeros(1)})
    return path.with_name("alone")


GRAPHS = [
    # (what is given, how to make it, what is said of it)
    ("of another model", lambda path: trained(
        path.with_name("other")) + ".meta",
     "none of the keys of {path} is as in the graph of {graph}. Name the "
     "graph that {path} was saved from."),
    ("an event file", events, "{graph} is an event file. Name a MetaGraph or "
     "a GraphDef."),
    ("a checkpoint", without_graph, "{graph} is a checkpoint, and there is no "
     "{graph}.meta. Name a MetaGraph or a GraphDef."),
    ("nothing", lambda path: path.with_name("gone"),
     "{graph} does not exist."),
    ("a text", index_of, "{graph} is a checkpoint, and there"),
]


@pytest.mark.parametrize("make, words", [case[1:] for case in GRAPHS],
                         ids=[case[0] for case in GRAPHS])
def test_a_graph_that_cannot_be_used_is_one_line(
        make, words, tmp_path, capsys):
    path = original(tmp_path)
    graph = make(path)
    assert checkpoints.run("strip", path, tmp_path / "out",
                           "--meta-graph", graph) == 1
    assert_one_line(capsys, words.format(path=path, graph=graph))


def test_a_checkpoint_stands_for_the_graph_beside_it(tmp_path, capsys):
    path = trained(tmp_path / "model")
    assert checkpoints.run("strip", path, "--dry-run", "--meta-graph",
                           path) == 0
    assert capsys.readouterr().out.splitlines()[0] == (
        "judged by the graph in {}.meta".format(path))


NAMES = [
    # (how it is named, what is said of it)
    ("{}.meta", "{path}.meta is no checkpoint. Name its prefix: {path}"),
    ("{}/", "{path}/ is no checkpoint. Name its prefix: {path}"),
    ("{}.data-00000-of-00001/",
     "{path}.data-00000-of-00001/ is no checkpoint. Name its prefix: {path}"),
    ("{}/../checkpoint", "checkpoint is a list of checkpoints. Name the "
     "folder or the prefix of one."),
]


@pytest.mark.parametrize("name, words", NAMES)
def test_a_near_miss_of_a_checkpoint_is_told_its_prefix(
        name, words, tmp_path, capsys):
    with tf.Graph().as_default():
        models.Regression("model")
        saver = tf.train.Saver()
        with models.session() as session:
            path = saver.save(session, str(tmp_path / "model"))
    named = (str(tmp_path / "checkpoint") if ".." in name
             else name.format(path))
    assert checkpoints.run("strip", named, tmp_path / "out") == 1
    assert_one_line(capsys, words.format(path=path))


def program(command, tmp_path):
    """The exit status and the errors of a line of a shell."""
    child = subprocess.run(
        ["bash", "-c", "set -o pipefail; " + command.format(
            "'{}' -m tf1accum".format(sys.executable))],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        universal_newlines=True, cwd=str(tmp_path),
        env=dict(os.environ, PYTHONPATH=ROOT, TF_CPP_MIN_LOG_LEVEL="3"))
    return child.returncode, [line for line in child.stderr.splitlines()
                              if "tf1accum" in line or "Error" in line
                              or "Traceback" in line]


@pytest.mark.parametrize("command", [
    "inspect in --json", "strip in/model out"])
def test_a_full_device_is_said_in_one_line(command, tmp_path):
    original(tmp_path)
    assert program("{} " + command + " >/dev/full", tmp_path) == (
        1, ["tf1accum: the output cannot be written: No space left on device. "
            "All else is done."])


@pytest.mark.parametrize("command", [
    "inspect in/model", "strip in/model out"])
def test_a_reader_that_stops_reading_is_no_trouble(command, tmp_path):
    original(tmp_path)
    assert program("{} " + command + " | head -n 0", tmp_path) == (0, [])
    assert (tmp_path / "out.index").exists() == ("out" in command)
