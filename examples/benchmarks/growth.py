"""Measures that nothing grows: with variables, with windows, or with k.

    python examples/benchmarks/growth.py --help

Three tables:

    building  user CPU seconds and ops that `tf1accum.build` and
              `AccumulatingOptimizer.minimize` add to a graph, beside those that
              the optimizer's own `minimize` adds, for models of more and more
              variables
    windows   seconds of an accumulate, of an apply and of a step, and the
              resident memory, over very many windows of a tiny model: the last
              tenth of them beside the first
    k         the same seconds for windows of other k

Each model is made anew, and who is measured first changes from round to round.
"""

import argparse
import collections
import gc
import json
import os
import time

import numpy as np
import tensorflow.compat.v1 as tf

import tf1accum
from embedding import in_turn, positive, spread
from memory import resident

K = 4  # of the windows that are not there to compare k
TENTHS = 10
WARM = 100  # windows that are not counted


def minimize(loss):
    tf.train.AdamOptimizer(1e-3).minimize(loss)


def build(loss):
    tf1accum.build(loss, optimizer=tf.train.AdamOptimizer(1e-3), k=K)


def accumulating_optimizer(loss):
    tf1accum.AccumulatingOptimizer(
        tf.train.AdamOptimizer(1e-3), K).minimize(loss)


BUILDERS = collections.OrderedDict([
    ("minimize", minimize), ("build", build),
    ("optimizer", accumulating_optimizer)])


def cost_of_building(builder, variables):
    """User CPU seconds, and ops added, for a model of many variables."""
    with tf.Graph().as_default() as graph:
        x = tf.placeholder(tf.float32, [None, 1])
        loss = tf.add_n([
            tf.reduce_mean(tf.square(1. - x * tf.get_variable(
                "v%d" % i, [8]))) for i in range(variables)])
        before = len(graph.get_operations())
        gc.collect()
        start = os.times().user
        builder(loss)
        seconds = os.times().user - start
        return seconds, len(graph.get_operations()) - before


def measure_building(numbers, rounds):
    """For each number of variables: seconds, ops, and both over minimize's."""
    rows = []
    for number in numbers:
        measured = in_turn({
            name: lambda builder=builder: cost_of_building(builder, number)
            for name, builder in BUILDERS.items()}, rounds)
        row = {"variables": number}
        for name, values in measured.items():
            seconds, ops = values.T
            row[name] = {
                "seconds": spread(seconds), "ops": int(ops[0]),
                "ratio": spread(seconds / np.maximum(
                    measured["minimize"][:, 0], 1e-3)),
                "ops_ratio": ops[0] / measured["minimize"][0, 1]}
        rows.append(row)
    return rows


class Tiny:
    """A tiny model, and windows of several k on it."""

    def __init__(self, ks):
        self._x = tf.placeholder(tf.float32, [None, 4])
        kernel = tf.get_variable("kernel", [4, 4])
        loss = tf.reduce_mean(tf.square(tf.matmul(self._x, kernel) - 1.))
        self._feed = {self._x: np.ones([2, 4], np.float32)}
        self._runs = {}
        for k in ks:
            ops = tf1accum.build(
                loss, optimizer=tf.train.AdamOptimizer(1e-3), k=k)
            step = tf1accum.AccumulatingOptimizer(
                tf.train.AdamOptimizer(1e-3), k).minimize(loss)
            self._runs[k] = {"accumulate": ops.accumulate,
                             "apply": ops.apply_and_reset, "step": step}
        self.session = tf.Session()
        self.session.run(tf.global_variables_initializer())

    def window(self, k):
        """Seconds of one accumulate, of one apply and of one step: a list.

        Of each there are k in a window, or one; these are the means.
        """
        def timed(name, times):
            start = time.perf_counter()
            for _ in range(times):
                self.session.run(self._runs[k][name], self._feed)
            return (time.perf_counter() - start) / times

        return [timed("accumulate", k), timed("apply", 1), timed("step", k)]


RUNS = ("accumulate", "apply", "step")


def measure_windows(windows):
    """Medians of each tenth of the windows, and the memory after it."""
    with tf.Graph().as_default():
        tiny = Tiny([K])
        for _ in range(WARM):  # which make executors and allocate
            tiny.window(K)
        seconds, memory = [], []
        for tenth in np.array_split(np.arange(windows), TENTHS):
            taken = np.array([tiny.window(K) for _ in tenth])
            seconds.append(np.median(taken, axis=0))
            del taken
            gc.collect()
            memory.append(resident("VmRSS"))
        tiny.session.close()
    seconds = np.array(seconds)
    return {
        "windows": windows, "memory": memory,
        "runs": {name: {"ms": list(1e3 * seconds[:, i]),
                        "ratio": seconds[-1, i] / seconds[0, i]}
                 for i, name in enumerate(RUNS)}}


def measure_k(ks, windows):
    """Milliseconds of each run for each k, and ratios to those of the first."""
    with tf.Graph().as_default():
        tiny = Tiny(ks)
        measured = in_turn({k: lambda k=k: tiny.window(k) for k in ks},
                           windows)
        tiny.session.close()
    return [dict(
        [("k", k)] + [(name, {
            "ms": spread(1e3 * measured[k][:, i]),
            "ratio": spread(measured[k][:, i] / measured[ks[0]][:, i])})
                      for i, name in enumerate(RUNS)]) for k in ks]


def print_results(results):
    """Prints the three tables."""
    def ratio(quartiles):
        return "{1:.2f} [{0:.2f}, {2:.2f}]".format(*quartiles)

    print("\nbuilding: user CPU seconds, and ops added; and both, in times "
          "those of minimize")
    line = "  {:>9} {:>8} {:>6}  {:24}  {}"
    print(line.format("variables", "minimize", "ops", "tf1accum.build",
                      "AccumulatingOptimizer"))
    for row in results["building"]:
        own = row["minimize"]
        print(line.format(
            row["variables"], "{:.2f}".format(own["seconds"][1]), own["ops"],
            *["{}, {:.2f}".format(ratio(row[name]["ratio"]),
                                  row[name]["ops_ratio"])
              for name in ("build", "optimizer")]))

    found = results["windows"]
    print("\n{:,} windows of {}: ms in the first tenth and in the last"
          .format(found["windows"], K))
    for name in RUNS:
        run = found["runs"][name]
        print("  {:12}{:8.3f}{:8.3f}  ratio {:.2f}".format(
            name, run["ms"][0], run["ms"][-1], run["ratio"]))
    print("  resident memory after each tenth, MB:\n  "
          + " ".join("{:.2f}".format(value / 1e6)
                     for value in found["memory"]))

    print("\nms of a run, and times those of k = {}".format(
        results["k"][0]["k"]))
    line = "  {:>4}" + "  {:>22}" * 3
    print(line.format("k", *RUNS))
    for row in results["k"]:
        print(line.format(row["k"], *[
            "{:.2f} {}".format(row[name]["ms"][1], ratio(row[name]["ratio"]))
            for name in RUNS]))


def main():
    parser = argparse.ArgumentParser(
        description="Measures that nothing grows: building with the number of "
        "variables more than minimize's, runs and memory with the windows run, "
        "or runs with k.")
    parser.add_argument("--variables", nargs="+", type=positive,
                        default=[10, 100, 500, 1000, 2000],
                        help="variables to build for (default: 10 100 500 "
                        "1000 2000)")
    parser.add_argument("--rounds", type=positive, default=3,
                        help="builds of each (default: 3)")
    parser.add_argument("--windows", type=positive, default=10000,
                        help="windows to run (default: 10000)")
    parser.add_argument("--k", nargs="+", type=positive,
                        default=[2, 8, 32, 128],
                        help="micro-batches in a window, to compare (default: "
                        "2 8 32 128)")
    parser.add_argument("--k-windows", type=positive, default=200,
                        help="windows of each k (default: 200)")
    parser.add_argument("--json", action="store_true",
                        help="print all as JSON; of what has a spread, [first "
                        "quartile, median, third quartile]")
    settings = parser.parse_args()

    tf.disable_v2_behavior()
    tf.logging.set_verbosity(tf.logging.ERROR)
    results = {
        "tensorflow": tf.__version__, "cpus": os.cpu_count(),
        "load": os.getloadavg()[0], "settings": vars(settings),
        "windows": measure_windows(max(settings.windows, TENTHS)),
        "k": measure_k(settings.k, settings.k_windows),
        "building": measure_building(settings.variables, settings.rounds)}
    if settings.json:
        print(json.dumps(results, indent=2, sort_keys=True))
        return
    print("TensorFlow {}, {} CPUs, load average {:.1f} at the start\n"
          "medians [quartiles]".format(
              results["tensorflow"], results["cpus"], results["load"]))
    print_results(results)


if __name__ == "__main__":
    main()
