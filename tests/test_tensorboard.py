"""What TensorBoard reads and shows of a graph and of a training run."""

import importlib.util
import json
import os
import re
import subprocess
import sys
import urllib.parse
import urllib.request

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from google.protobuf import text_format

import events
import models
import tf1accum

EXAMPLES = os.path.join(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "examples")
K, STEPS = 2, 3


def load(*path):
    """An example as a module."""
    name = os.path.splitext(path[-1])[0]
    spec = importlib.util.spec_from_file_location(
        name, os.path.join(EXAMPLES, *path))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


take = load("images", "take.py")


def has_tensorboard():
    """Whether this TensorFlow comes with one."""
    return importlib.util.find_spec("tensorboard") is not None


needs_tensorboard = pytest.mark.skipif(
    not has_tensorboard(), reason="TensorFlow {} brings no TensorBoard: pip "
    "install tensorboard".format(tf.__version__))


# A training run.

@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """The folder that TensorBoard is shown, with a folder for each graph."""
    return tmp_path_factory.mktemp("tensorboard") / "runs"


@pytest.fixture(scope="module")
def run(root):
    """What the example prints, and the folder that it writes in."""
    folder = str(root / "a training run")
    package = os.path.dirname(os.path.dirname(tf1accum.__file__))
    done = subprocess.run(
        [sys.executable, os.path.join(EXAMPLES, "summaries.py"), "--k", str(K),
         "--steps", str(STEPS), "--log_dir", folder],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        universal_newlines=True, env=dict(os.environ, PYTHONPATH=package))
    assert done.returncode == 0, done.stderr
    return done.stdout, folder


def test_the_example_says_how_to_look_at_what_it_wrote(run):
    printed, folder = run
    assert printed.splitlines()[-1].endswith(
        "tensorboard --logdir '{}'".format(folder))
    assert [line for line in printed.splitlines()
            if len(line) > 80 and folder not in line] == []


def test_the_example_writes_each_window_at_its_step(run):
    printed, folder = run
    got = events.written(folder)
    assert [step for step, _ in got] == list(range(1, STEPS + 1))
    for _, shown in got:
        assert list(shown)[-3:] == [
            "accumulation/average_loss", "accumulation/mean_gradient_norm",
            "accumulation/count"]
        assert shown["accumulation/count"] == K
        histograms = {tag: value for tag, value in shown.items()
                      if tag.startswith("accumulation/gradient/")}
        assert len(histograms) == 8
        # The histograms are of the gradient whose norm it is.
        np.testing.assert_allclose(
            np.sqrt(sum(histogram.sum_squares
                        for histogram in histograms.values())),
            shown["accumulation/mean_gradient_norm"], rtol=1e-4)
    shown = float(re.search(r"of the last ([\d.]+)", printed).group(1))
    np.testing.assert_allclose(
        got[-1][1]["accumulation/average_loss"], shown, atol=1e-4)


def costs(folder):
    """{tag: names of the ops that cost something} of what was profiled."""
    found = {}
    for event in events.events(folder):
        if event.HasField("tagged_run_metadata"):
            metadata = tf.RunMetadata.FromString(
                event.tagged_run_metadata.run_metadata)
            found[event.tagged_run_metadata.tag] = {
                node.node_name for device in metadata.step_stats.dev_stats
                for node in device.node_stats}
    return found


def in_scope(names, scope):
    return [name for name in names if name.startswith(scope + "/")]


def test_profiles_name_the_ops_of_the_stages_that_ran(run):
    found = costs(run[1])
    assert sorted(found) == ["accumulation/accumulate", "accumulation/apply"]
    added, applied = [found[tag] for tag in sorted(found)]
    for stage in ("network", "accumulation/gradients",
                  "accumulation/accumulate"):
        assert in_scope(added, stage), stage
    for stage in ("accumulation/mean", "accumulation/apply"):
        assert in_scope(applied, stage), stage
        assert not in_scope(added, stage), stage
    assert not in_scope(applied, "accumulation/gradients")
    assert not in_scope(applied, "accumulation/accumulate")


@needs_tensorboard
def test_tensorboard_reads_the_tags_the_graph_and_the_profiles(run):
    from tensorboard.backend.event_processing import event_accumulator
    reader = event_accumulator.EventAccumulator(run[1])
    reader.Reload()
    tags = reader.Tags()
    assert tags["scalars"] == [
        "accumulation/average_loss", "accumulation/mean_gradient_norm",
        "accumulation/count"]
    assert len(tags["histograms"]) == 8
    assert sorted(tags["run_metadata"]) == [
        "accumulation/accumulate", "accumulation/apply"]
    assert tags["graph"]
    read = [(scalar.step, scalar.value)
            for scalar in reader.Scalars("accumulation/average_loss")]
    assert read == [(step, shown["accumulation/average_loss"])
                    for step, shown in events.written(run[1])]


# Graphs.

def layers(number):
    """A model of so many layers."""
    hidden = tf.placeholder(tf.float32, [None, 4], name="x")
    with tf.name_scope("layers"):
        for index in range(number):
            hidden = tf.matmul(hidden, tf.get_variable(
                "layers/w{}".format(index), [4, 4]))
    with tf.name_scope("loss"):
        return tf.reduce_mean(tf.square(hidden))


def momentum():
    return tf.train.MomentumOptimizer(.1, .9)


def build(loss, **options):
    return tf1accum.build(loss, optimizer=momentum(), k=K, **options)


def build_from_gradients(loss):
    with tf.name_scope("loss/"):
        pairs = momentum().compute_gradients(loss)
    return tf1accum.build_from_gradients(pairs, optimizer=momentum(), k=K)


def minimize(loss, **options):
    return tf1accum.AccumulatingOptimizer(
        momentum(), K, **options).minimize(loss)


# What is added to a model of how many layers, and the boxes that it makes.
GRAPHS = {
    "nothing": (2, lambda loss: None, set()),
    "build": (2, build, {"accumulation"}),
    "build, 50 layers": (50, build, {"accumulation"}),
    "build from gradients": (2, build_from_gradients, {"accumulation"}),
    "build and summaries": (2, lambda loss: tf1accum.add_summaries(
        build(loss), histograms=True), {"accumulation"}),
    "every-k optimizer": (2, minimize, {"accumulation"}),
    "every-k optimizer and summaries": (2, lambda loss: minimize(
        loss, summarize=tf1accum.add_summaries), {"accumulation"}),
    "two builds": (2, lambda loss: [build(loss), build(loss)],
                   {"accumulation", "accumulation_1"}),
}


@pytest.fixture(scope="module")
def address(root, run):
    """That of a TensorBoard that serves the run and all of GRAPHS."""
    for name, (number, add, _) in GRAPHS.items():
        with tf.Graph().as_default() as graph:
            add(layers(number))
            tf.summary.FileWriter(str(root / name), graph).close()
    with take.tensorboard(str(root)) as address:
        take.wait(lambda: GRAPHS.keys() <= ask(
            address, "info", as_json=True).keys(), "TensorBoard to read all")
        yield address


def ask(address, what, as_json=False, **query):
    """What TensorBoard's graph plugin answers."""
    with urllib.request.urlopen("{}data/plugin/graphs/{}?{}".format(
            address, what, urllib.parse.urlencode(query)),
                                timeout=take.SECONDS) as answer:
        text = answer.read().decode("utf-8")
    return json.loads(text) if as_json else text


def top_level(address, run_name):
    """What is at the top level of the graph that the plugin serves."""
    graph = text_format.Parse(
        ask(address, "graph", run=run_name, conceptual="false"),
        tf.GraphDef())
    return {node.name.partition("/")[0] for node in graph.node}


@needs_tensorboard
@pytest.mark.parametrize("name", sorted(GRAPHS))
def test_each_build_adds_one_node_to_the_top_level(address, name):
    assert top_level(address, name) - top_level(address, "nothing") == (
        GRAPHS[name][2])


@needs_tensorboard
@pytest.mark.parametrize("stage", ["accumulate", "apply"])
def test_the_costs_of_the_stages_can_be_chosen_in_the_graph(address, stage):
    tag = "accumulation/" + stage
    tags = ask(address, "info", as_json=True)["a training run"]["tags"]
    assert tags[tag]["profile"]
    served = text_format.Parse(
        ask(address, "run_metadata", run="a training run", tag=tag),
        tf.RunMetadata())
    assert in_scope({node.node_name
                     for device in served.step_stats.dev_stats
                     for node in device.node_stats}, tag)


@needs_tensorboard
def test_a_browser_shows_the_box_by_its_label_and_opens_it(address):
    if take.missing():
        pytest.skip(take.missing())
    with take.browser() as page:
        page.open_graph(address, "a training run", "accumulation")
        assert page.labels().count("accumulation") == 1
        page.expand("accumulation")
        assert {"accumulate", "apply", "reset"} <= set(page.labels())
