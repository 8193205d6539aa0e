"""Measures the memory that training needs at its peak, by each way there is.

Each way trains a convolutional net for a few windows in a process of its own.
What is reported is the peak of the memory that is resident (`VmHWM`, which
Linux keeps for each process), less what is resident after the imports.

Memory that is freed is given back at once, so that the peak is of what is
needed at one time: TensorFlow's pool (of oneDNN) and that of the C library keep
it, in pieces that may not fit, and would have a part in the result that differs
by chance. `--keep-freed` leaves them as they are by default.

    python examples/benchmarks/memory.py --help

Two numbers are worked out of the peaks:

    above     the peak less that of training on single micro-batches, in times
              the bytes of the parameters: what accumulating adds. One
              accumulator for each parameter is 1
    of whole  the peak over that of one step on the whole batch, in which the
              activations of all examples are there at once
"""

import argparse
import collections
import json
import os
import subprocess
import sys

import numpy as np
import tensorflow.compat.v1 as tf

import contestants as contestants_lib
import workloads
from embedding import positive

CONTESTANTS = contestants_lib.CONTESTANTS
# A micro-batch's activations are several times its parameters. (Of "wide" they
# are less so: what accumulating adds that does not grow with them shows less.)
NETS = {
    "default": dict(side=64, channels=16, batch=48, depth=6, dense=384),
    "wide": dict(side=64, channels=16, batch=48, depth=6, dense=704),
    "small": dict(side=8, channels=4, batch=2, depth=2, dense=8)}
WINDOWS = 3
GIVE_BACK = {"TF_ENABLE_ONEDNN_OPTS": "0", "MALLOC_MMAP_THRESHOLD_": "131072"}
# The two that the others are compared with: k of the first does not matter.
MICRO_BATCH, WHOLE = "each", "whole"


def resident(field):
    """Bytes of this process's memory: "VmRSS" now, "VmHWM" at its peak."""
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith(field + ":"):
                return 1024 * int(line.split()[1])
    raise RuntimeError("/proc/self/status has no {}.".format(field))


def measure_here(name, k, net):
    """Trains in this process, and returns what it took, in bytes."""
    before = resident("VmRSS")
    with tf.Graph().as_default():
        model = contestants_lib.Model(
            workloads.convolutional(**NETS[net]), k)
        train = CONTESTANTS[name].build(model)
        model.initialize()
        for _ in range(WINDOWS):
            train(model.draw())
        return {"bytes": model.bytes, "peak": resident("VmHWM") - before}


def measure_apart(name, k, settings):
    """The same, in a process of its own."""
    command = [sys.executable, os.path.abspath(__file__), "--net",
               settings.net, "--k", str(k), "--here", name]
    if settings.resource_variables:
        command.append("--resource-variables")
    run = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        universal_newlines=True, env=dict(
            os.environ, **({} if settings.keep_freed else GIVE_BACK)))
    if run.returncode:
        raise RuntimeError("{} failed: {}".format(
            " ".join(command), run.stderr))
    return json.loads(run.stdout)


def measure(k, names, settings):
    """All that is printed of one k."""
    peaks = collections.OrderedDict((name, []) for name in names)
    for _ in range(settings.rounds):
        for name in names:
            measured = measure_apart(name, k, settings)
            peaks[name].append(measured["peak"])
    medians = {name: float(np.median(peaks[name])) for name in names}
    found = {"k": k, "bytes": measured["bytes"],
             "contestants": collections.OrderedDict()}
    for name in names:
        found["contestants"][name] = {
            "peak": [min(peaks[name]), medians[name], max(peaks[name])],
            "above": (medians[name] - medians[MICRO_BATCH]) / found["bytes"],
            "of_whole": medians[name] / medians[WHOLE]}
    return found


def print_found(found, net):
    """Prints the table of one k."""
    print("\nk = {}, micro-batches of {}, parameters of {:.1f} MB".format(
        found["k"], NETS[net]["batch"], found["bytes"] / 1e6))
    line = "  {:24}{:>26}{:>12}{:>12}"
    print(line.format("", "peak, MB", "above", "of whole"))
    for name, entry in found["contestants"].items():
        low, median, high = (value / 1e6 for value in entry["peak"])
        print(line.format(
            CONTESTANTS[name].title, "{:.0f} [{:.0f}, {:.0f}]".format(
                median, low, high), "{:.2f}".format(entry["above"]),
            "{:.2f}".format(entry["of_whole"])), flush=True)


def main():
    parser = argparse.ArgumentParser(
        description="Measures the memory that training needs at its peak, by "
        "each way there is, in a process of its own each.")
    parser.add_argument("--k", nargs="+", type=positive, default=[8],
                        help="micro-batches in a window (default: 8)")
    parser.add_argument("--rounds", type=positive, default=3,
                        help="processes of each contestant (default: 3)")
    parser.add_argument("--contestants", nargs="+", metavar="NAME",
                        choices=list(CONTESTANTS), default=list(CONTESTANTS),
                        help="of {} (default: all); {} and {} are always "
                        "there".format(", ".join(CONTESTANTS), MICRO_BATCH,
                                       WHOLE))
    parser.add_argument("--net", choices=sorted(NETS), default="default",
                        help="the net (default: default); small is there to "
                        "try this program, and is less than what differs by "
                        "chance")
    parser.add_argument("--keep-freed", action="store_true",
                        help="let pools keep what is freed, as by default")
    parser.add_argument("--resource-variables", action="store_true",
                        help="the model's variables are resource variables, "
                        "not the reference variables of TensorFlow 1")
    parser.add_argument("--json", action="store_true",
                        help="print [least, median, most] bytes as JSON")
    parser.add_argument("--here", choices=list(CONTESTANTS), metavar="NAME",
                        help="measure one contestant, in this process as it "
                        "is, and print its bytes")
    settings = parser.parse_args()

    tf.disable_v2_behavior()
    if settings.resource_variables:
        tf.enable_resource_variables()
    tf.logging.set_verbosity(tf.logging.ERROR)
    if settings.here:
        print(json.dumps(measure_here(
            settings.here, settings.k[0], settings.net)))
        return
    names = [name for name in CONTESTANTS
             if name in (MICRO_BATCH, WHOLE) or name in settings.contestants]
    if not settings.json:
        print("TensorFlow {}, {} CPUs, {} processes each\n"
              "medians [least, most] of the peak of resident memory, less the "
              "imports'\nabove: the peak of single micro-batches, in times "
              "the parameters' bytes".format(
                  tf.__version__, os.cpu_count(), settings.rounds))
    results = []
    for k in settings.k:
        results.append(measure(k, names, settings))
        if not settings.json:
            print_found(results[-1], settings.net)
    if settings.json:
        print(json.dumps({
            "tensorflow": tf.__version__, "cpus": os.cpu_count(),
            "settings": vars(settings), "results": results}, indent=2))


if __name__ == "__main__":
    main()
