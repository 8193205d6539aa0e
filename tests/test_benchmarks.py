"""The benchmarks compare like with like, and print what they measured."""

import argparse
import importlib
import json
import os
import re
import sys
from xml.etree import ElementTree

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

BENCHMARKS = os.path.join(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "examples",
    "benchmarks")
SMALL = {
    "layers": lambda workloads: workloads.layers(2, 4, 2, bias=True),
    "conv": lambda workloads: workloads.convolutional(
        4, 3, 2, depth=1, dense=5),
    "lstm": lambda workloads: workloads.lstm(3, 2, 2),
    "embedding": lambda workloads: workloads.embedding(20, 3, 5)}


@pytest.fixture
def load(monkeypatch):
    """A function that imports a benchmark, which imports others beside it."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module


@pytest.fixture
def main(load, monkeypatch, capsys):
    """A function that runs a benchmark, and returns what it prints."""

    def run(name, *arguments):
        monkeypatch.setattr(sys, "argv", [name] + list(arguments))
        load(name).main()
        return capsys.readouterr().out

    return run


def adam(kernel, gradients):
    """The kernel after Adam's steps, from its paper."""
    rate, epsilon, moment, square = 1e-3, 1e-3, 0., 0.
    for t, grad in enumerate(gradients, 1):
        moment = .9 * moment + .1 * grad
        square = .999 * square + .001 * grad ** 2
        kernel = kernel - (
            rate * np.sqrt(1. - .999 ** t) / (1. - .9 ** t)
            * moment / (np.sqrt(square) + epsilon))
    return kernel


@pytest.mark.parametrize("name", sorted(SMALL))
def test_all_contestants_lead_to_the_weights_that_numpy_leads_to(name, load):
    windows = load("windows")
    bench = windows.Bench(SMALL[name](load("workloads")), 3,
                          list(windows.CONTESTANTS))
    apart = bench.check_equal()
    assert set(apart) == set(windows.CONTESTANTS)
    assert all(value < 1e-3 for value in apart.values())


def test_what_contestants_are_compared_with_is_adam_on_the_mean(load):
    """One layer of one unit: loss = mean (relu(k x) - 1)^2, k x positive."""
    windows, workloads = load("windows"), load("workloads")
    workload = workloads.layers(1, 1, 2)
    bench = windows.Bench(workload, 2, [])
    model = bench.model
    bench.bare.start = [np.array([[.5]], np.float32)]
    feeds = [[{model.inputs[0]: np.array(batch, np.float32)}
              for batch in step]
             for step in ([[[1.], [2.]], [[3.], [4.]]], [[[5.], [6.]]])]
    # d/dk of the mean over examples of (k x - 1)^2 is that of 2 x (k x - 1).
    grads, kernel = [], .5
    for xs in (np.arange(1., 5.), np.arange(5., 7.)):
        grads.append(np.mean(2. * xs * (kernel * xs - 1.)))
        kernel = adam(.5, grads)
    found, = bench.bare.trained(feeds)
    np.testing.assert_allclose(found, [[kernel]], rtol=1e-6)


@pytest.mark.parametrize("wrong", ["each", "nothing"])
def test_a_contestant_that_does_something_else_is_refused(wrong, load):
    windows = load("windows")
    bench = windows.Bench(SMALL["layers"](load("workloads")), 2,
                          ["each", "build"])
    bench.check_equal()
    bench.trainers["build"] = (bench.trainers["each"] if wrong == "each"
                               else lambda window: None)
    with pytest.raises(RuntimeError, match="build must lead to the values"):
        bench.check_equal()


def test_windows_prints_a_table_and_the_same_as_json(
        main, load, monkeypatch, capsys):
    workloads, windows = load("workloads"), load("windows")
    monkeypatch.setitem(workloads.WORKLOADS, "tiny",
                        lambda: SMALL["layers"](workloads))
    monkeypatch.setattr(windows, "BUFFERS", [[8, 8]])
    results = json.loads(main(
        "windows", "--workloads", "tiny", "--k", "1", "2", "--rounds", "2",
        "--contestants", "each", "build", "--json"))["results"]
    assert [found["k"] for found in results] == [1, 2]
    for found in results:
        # Two layers of 4 x 4 with a bias.
        assert found["bytes"] == 4 * 2 * (16 + 4)
        assert set(found["contestants"]) == {"each", "build"}
        ratio = found["contestants"]["build"]["ratio"]
        assert 0 < ratio[0] <= ratio[1] <= ratio[2]
    assert [found["contestants"]["build"]["passes"] for found in results] == [
        3 + 1, 6 + 1]

    windows.print_found(results[1])
    printed = capsys.readouterr().out
    assert "2 layers of 4, k = 2: " in printed
    assert re.search(
        r"^  tf1accum.build +[\d.]+  [\d.]+ \[[\d.]+, [\d.]+\] +"
        r"[\d.]+ \[[\d.]+, [\d.]+\]$", printed, re.MULTILINE)


def test_memory_measures_a_contestant_in_a_process_of_its_own(load):
    settings = argparse.Namespace(
        net="small", keep_freed=False, resource_variables=True)
    found = load("memory").measure_apart("build", 2, settings)
    # Two convolutions with batch norm, two layers after a pool.
    assert found["bytes"] == 4 * (
        9 * 3 * 4 + 9 * 4 * 4 + 2 * 2 * 4 + 4 * 4 * 4 * 8 + 8 * 10)
    assert found["peak"] > found["bytes"]


def test_memory_compares_with_one_micro_batch_and_with_the_whole(
        main, load, monkeypatch):
    peaks = {"each": 1e6, "whole": 8e6, "build": 2e6}
    monkeypatch.setattr(
        load("memory"), "measure_apart", lambda name, k, settings: {
            "bytes": 400000, "peak": peaks[name] + k})
    arguments = ("--k", "2", "8", "--contestants", "build")
    printed = main("memory", *arguments)
    assert re.findall(r"^  tf1accum.build +(.*)$", printed, re.MULTILINE) == [
        "2 [2, 2]        2.50        0.25"] * 2

    results = json.loads(main("memory", *arguments, "--json"))["results"]
    assert [found["k"] for found in results] == [2, 8]
    assert set(results[0]["contestants"]) == set(peaks)
    assert results[0]["contestants"]["build"] == {
        "peak": [2e6 + 2] * 3, "above": 2.5, "of_whole": 2000002 / 8000002}


def test_the_peak_of_resident_memory_is_that_of_this_process(load):
    resident = load("memory").resident
    before = resident("VmRSS")
    size = 64 * 2 ** 20
    array = np.ones(size, np.uint8)
    assert resident("VmRSS") - before > .9 * size
    del array
    assert resident("VmHWM") - before > .9 * size


def test_growth_prints_its_tables_and_the_same_as_json(main, load, capsys):
    results = json.loads(main(
        "growth", "--variables", "2", "--rounds", "1", "--windows", "10",
        "--k", "1", "3", "--k-windows", "2", "--json"))
    assert [row["variables"] for row in results["building"]] == [2]
    assert [row["k"] for row in results["k"]] == [1, 3]
    assert len(results["windows"]["memory"]) == 10
    assert set(results["windows"]["runs"]) == {"accumulate", "apply", "step"}

    load("growth").print_results(results)
    printed = capsys.readouterr().out
    for start in ("building", "10 windows of 4", "ms of a run"):
        assert "\n" + start in printed


def test_ops_grow_by_as_many_for_each_further_variable(load):
    """Linear from the first variables on: equal second differences."""
    growth = load("growth")
    for builder in growth.BUILDERS.values():
        ops = [growth.cost_of_building(builder, number)[1]
               for number in (2, 3, 4)]
        assert ops[2] - ops[1] == ops[1] - ops[0] > 0


@pytest.mark.parametrize("kind", ["windows", "memory"])
def test_plot_draws_a_line_for_each_contestant(kind, main, tmp_path):
    def entry(value):
        return ({"ratio": [0., value, 9.]} if kind == "windows" else
                {"peak": [0., 1e6 * value, 9e6]})

    results = [dict({"title": "a & b"} if kind == "windows" else {},
                    k=k, contestants={"build": entry(1. + 1. / k),
                                      "whole": entry(2.)})
               for k in (2, 4, 8)]
    measured, drawn = tmp_path / "measured.json", tmp_path / "drawn.svg"
    measured.write_text(json.dumps({"results": results}))
    main("plot", str(measured), str(drawn))

    root = ElementTree.parse(str(drawn)).getroot()
    space = "{http://www.w3.org/2000/svg}"
    words = [element.text for element in root.iter(space + "text")]
    for wanted in ("whole batch", "tf1accum.build", "2", "4", "8"):
        assert wanted in words
    assert len(list(root.iter(space + "circle"))) == 2 * 3
    lines = [[tuple(map(float, point.split(",")))
              for point in element.get("points").split()]
             for element in root.iter(space + "polyline")]
    heights = sorted([y for _, y in line] for line in lines if len(line) == 3)
    # A higher value is drawn higher up; 2 is drawn level.
    assert any(len(set(ys)) == 1 for ys in heights)
    assert any(ys == sorted(ys) and len(set(ys)) == 3 for ys in heights)


@pytest.mark.parametrize("found", [None, "", "[]"])
def test_plot_says_what_it_reads(found, main, tmp_path, capsys):
    measured = tmp_path / "measured.json"
    if found is not None:
        measured.write_text(found)
    with pytest.raises(SystemExit):
        main("plot", str(measured), str(tmp_path / "drawn.svg"))
    assert "must hold what windows.py or memory.py printed" in (
        capsys.readouterr().err)
    assert not (tmp_path / "drawn.svg").exists()


def test_plot_knows_each_contestant(load):
    titles = load("plot").TITLES
    assert set(load("contestants").CONTESTANTS) <= set(titles)
    assert len(load("plot").COLOURS) == len(titles)


@pytest.mark.parametrize("name", ["windows", "memory", "growth", "plot"])
def test_help_is_printed(name, main, capsys):
    with pytest.raises(SystemExit) as stop:
        main(name, "--help")
    assert stop.value.code == 0
    assert "usage: " + name in capsys.readouterr().out


def test_the_benchmarks_have_lines_of_at_most_80_columns():
    for name in os.listdir(BENCHMARKS):
        if name.endswith(".py"):
            with open(os.path.join(BENCHMARKS, name)) as file:
                assert [line for line in file.read().split("\n")
                        if len(line) > 80] == [], name
