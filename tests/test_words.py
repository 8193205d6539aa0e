"""The example of word embeddings runs, and so does the benchmark of them."""

import json
import os
import re
import runpy
import types

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

import tf1accum
from conftest import EXAMPLES, run_example, run_here

BENCHMARK = os.path.join("benchmarks", "embedding.py")


def load(name):
    """What the example defines, by name."""
    return types.SimpleNamespace(**runpy.run_path(
        os.path.join(EXAMPLES, name)))


@pytest.fixture(scope="module")
def printed():
    """What words.py prints in a run of 40 windows of 3."""
    return run_example("words.py", "--k", "3", "--steps", "40")


def test_words_shows_the_loss_as_it_goes_and_the_loss_falls(printed):
    shown = re.findall(
        r"^window +(\d+) of 40: (\d+) words, mean loss ([\d.]+); "
        r"since the last line ([\d.]+)$", printed, re.MULTILINE)
    assert [int(window) for window, _, _, _ in shown] == list(range(4, 41, 4))
    losses = [float(since) for _, _, _, since in shown]
    # A thousand words and more, none of them known: log 1000 = 6.9, less what
    # the sample leaves out.
    assert losses[0] > 4.5
    assert losses[-1] < losses[0] - .3


def test_words_weighs_windows_by_their_words(printed):
    seen = [int(number) for number in re.findall(r"(\d+) words, ", printed)]
    # Sentences of 5 words or more, 8 in each of 3 micro-batches.
    assert min(seen) > 3 * 8 * 5
    assert len(set(seen)) > 1


def test_words_trains_on_the_text_that_python_ships(printed):
    sentences, words = re.search(
        r"^([\d,]+) sentences of ([\d,]+) different words; a window is 3 x 8 "
        r"sentences$", printed, re.MULTILINE).groups()
    assert int(sentences.replace(",", "")) > 2000
    assert int(words.replace(",", "")) > 700


def test_words_ends_with_the_nearest_words_of_ten_frequent_ones(printed):
    nearest = re.findall(r"^  (\w+) +(\w+(?:, \w+){3})$", printed,
                         re.MULTILINE)
    assert len(nearest) == 10
    for word, others in nearest:
        assert len(word) >= 5
        assert word not in others.split(", ")


def test_words_windows_and_whole_batches_lead_to_the_same_weights(printed):
    assert "10 windows of 3 micro-batches against 10 whole batches" in printed
    with_weight, without = re.search(
        r"difference between weights (\S+); without weight=, (\S+)$",
        printed, re.MULTILINE).groups()
    assert float(with_weight) < 1e-5
    assert float(without) > 1e-3


def test_words_prints_lines_of_at_most_80_columns(printed):
    assert [line for line in printed.splitlines() if len(line) > 80] == []


def test_words_feeds_each_word_with_those_around_it():
    words = load("words.py")
    model = words.Model(vocabulary=100)
    feed = model.feed([np.array([3, 4, 5]), np.array([7])])
    assert feed[model.words].tolist() == [3, 4, 5, 7]
    # The edge of a sentence is the id after the last word's, 100.
    assert feed[model.contexts].tolist() == [
        [100, 100, 4, 5], [100, 3, 5, 100], [3, 4, 100, 100],
        [100, 100, 100, 100]]


def test_words_takes_only_plain_words_the_most_frequent_first():
    sentences, words = load("words.py").load_sentences()
    assert all(re.match(r"[^\W\d_]+\Z", word) for word in words)
    assert words[0] == "the"
    assert len(set(words)) == len(words)
    ids = np.concatenate(sentences)
    assert ids.min() == 0 and ids.max() == len(words) - 1
    assert min(len(sentence) for sentence in sentences) >= 5


def test_words_gradients_of_both_tables_are_kept_as_rows():
    words = load("words.py")
    model = words.Model(vocabulary=100)
    ops = tf1accum.build(
        model.loss, optimizer=tf.train.AdagradOptimizer(1.), k=2,
        weight=model.number)
    held = dict(zip([variable.op.name for variable in ops.variables],
                    ops.accumulators))
    assert isinstance(held["embeddings"], tf.IndexedSlices)
    assert isinstance(held["softmax/weights"], tf.IndexedSlices)


@pytest.mark.parametrize("name, options", [
    ("words.py", ["--k", "--steps"]),
    (BENCHMARK, ["--k", "--rounds", "--rows", "--lookups-only", "--dense",
                 "--json"])])
def test_help_names_each_option(name, options):
    text = run_here(name, "--help", status=0)
    assert [option for option in options if option not in text] == []


@pytest.mark.parametrize("name, option", [
    ("words.py", "--k"), ("words.py", "--steps"),
    (BENCHMARK, "--k"), (BENCHMARK, "--rounds"), (BENCHMARK, "--rows")])
def test_a_number_below_one_is_refused(name, option):
    assert "must be 1 or more" in run_here(name, option, "0", status=2)


def test_embedding_benchmark_writes_json():
    results = json.loads(run_here(
        BENCHMARK, "--rows", "1000", "--rounds", "1", "--k", "2", "--dense",
        "--json"))
    assert results["settings"]["rows"] == 1000
    assert results["length"]["k"] == [2, 16]
    assert results["size"]["rows"] == [100, 1000]
    for name in ("rows", "conditional", "dense"):
        low, median, high = results[name]["window"]
        assert 0 < low <= median <= high
    # The table, the kernel and the bias.
    assert len(results["equal"]["apart"]) == 3
    for apart, moved in zip(results["equal"]["apart"],
                            results["equal"]["moved"]):
        assert apart < 1e-4 * moved


def test_embedding_benchmark_prints_a_table_of_at_most_80_columns():
    lines = run_here(BENCHMARK, "--rows", "1000", "--rounds", "1", "--k", "1",
                     "--lookups-only").splitlines()
    assert [line for line in lines if len(line) > 80] == []
    for start in ("bare gradients ", "tf1accum ", "conditional "):
        assert [line for line in lines if line.startswith(start)], start


def test_embedding_contestants_all_make_the_steps_that_numpy_makes():
    """Adagrad on the mean gradient of two windows.

    The loss of a micro-batch is the mean over lookups of the squared distance
    of their rows from 1, so each lookup adds 2 (row - 1) / lookups.
    """
    embedding = load(BENCHMARK)
    k, rows = 3, 2000
    bench = embedding.Bench(k, rows, lookups_only=True, dense=True)
    table = bench.model.variables[0]
    windows = [bench.model.draw(k, bench.random) for _ in range(2)]
    start = bench.session.run(table).astype(np.float64)

    expected, squares = start.copy(), np.full_like(start, .1)
    for window in windows:
        times = np.bincount(window.reshape([-1]), minlength=rows)[:, np.newaxis]
        grad = times * 2. * (expected - 1.) / (embedding.LOOKUPS * k)
        squares += grad ** 2
        expected -= grad / np.sqrt(squares)
    moved = np.max(np.abs(expected - start))

    for name in ("rows", "conditional", "dense"):
        bench.restart([start])
        for window in windows:
            for ids in window:
                bench.contestants[name].accumulate(ids)
            bench.contestants[name].apply()
        apart = np.max(np.abs(bench.session.run(table) - expected))
        assert apart < 1e-3 * moved, name


def test_embedding_check_refuses_contestants_that_differ():
    embedding = load(BENCHMARK)
    bench = embedding.Bench(2, 1000, lookups_only=True, dense=False)
    bench.check_equal()
    # One that accumulates, and never applies.
    bench.contestants["conditional"] = bench.contestants["rows"]._replace(
        apply=lambda: None)
    with pytest.raises(RuntimeError, match="must lead to the same weights"):
        bench.check_equal()
