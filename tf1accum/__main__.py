"""`python -m tf1accum`: looks into checkpoints and graphs, and strips them."""

import argparse
import contextlib
import json
import os
import signal
import sys
import threading

import tensorflow.compat.v1 as tf

from tf1accum import inspection
from tf1accum import inspection_text
from tf1accum import stripping
from tf1accum.file_trouble import FileTrouble
from tf1accum.file_trouble import in_one_line

_EPILOG = """exit status: 0 if all is well, 1 for trouble with a file, 2 for a
wrong command line, 128 and its number where a signal ended it (130 for Ctrl-C).
Notes on stderr that do not start with "tf1accum:" are TensorFlow's own."""


def main(argv=None):
    """Runs the command line `argv`, and returns its exit status."""
    tf.logging.set_verbosity(tf.logging.ERROR)
    try:
        arguments = _parse(argv)
        with _stoppable():
            return arguments.run(arguments)
    except FileTrouble as trouble:
        return _fail(trouble)
    except _Stopped as stopped:
        return _fail("stopped; nothing was left behind.", stopped.status)


class _Parser(argparse.ArgumentParser):

    def print_help(self, file=None):
        """Prints it, or says why not."""
        del file
        _print([self.format_help().rstrip()])


def _parse(argv):
    parser = _Parser(
        prog="python -m tf1accum", epilog=_EPILOG,
        description="Looks into checkpoints and graphs for windows of gradient "
        "accumulation, and strips checkpoints to the model alone.")
    commands = parser.add_subparsers(metavar="COMMAND", dest="command")
    commands.required = True
    command = commands.add_parser(
        "inspect", epilog=_EPILOG,
        help="say which windows a file has, and what is the model's",
        description="Says which windows a graph has, of which variables, and "
        "what a checkpoint of the model alone would save.")
    command.add_argument(
        "path", metavar="PATH", type=_path, help="a MetaGraph (.meta) or a "
        "GraphDef, binary or text; a checkpoint, by its prefix or its .index; "
        "an event file; or the log folder that holds them")
    command.add_argument(
        "--json", action="store_true", help="print one JSON object; "
        "`python -m pydoc tf1accum.inspection` says what is in it")
    command.set_defaults(run=_inspect)
    command = commands.add_parser(
        "strip", epilog=_EPILOG,
        help="copy a checkpoint, without what is not the model's",
        description="Copies a checkpoint without optimizer state, accumulators "
        "and window scalars: told by the edges of the graph it was saved from "
        "where that is there, else by how its keys lie under each other. The "
        "original is not touched; OUT appears whole or not at all; a strip "
        "that is killed leaves a folder .tf1accum-strip-* beside OUT, which "
        "may be deleted. Groups of 128 MB are copied at a time; a single "
        "variable is held in memory whole.")
    command.add_argument(
        "checkpoint", metavar="CHECKPOINT", type=_path,
        help="its prefix, or its .index")
    command.add_argument(
        "out", metavar="OUT", nargs="?", type=_path,
        help="prefix of the copy; nothing of that name may exist. May be left "
        "out with --dry-run")
    command.add_argument(
        "--meta-graph", metavar="FILE", type=_path, help="MetaGraph or "
        "GraphDef that the checkpoint was saved from, or the prefix of a "
        "checkpoint with one beside it (default: CHECKPOINT.meta, if it is "
        "there)")
    command.add_argument(
        "--dry-run", action="store_true",
        help="list what stays and what goes, and why; write nothing")
    command.set_defaults(run=_strip)
    arguments = parser.parse_args(argv)
    if arguments.command == "strip" and not (
            arguments.out or arguments.dry_run):
        command.error("OUT is missing: name the copy, or give --dry-run.")
    return arguments


def _path(text):
    if not text:
        raise argparse.ArgumentTypeError("the path is empty: name a file.")
    return text


def _inspect(arguments):
    found = inspection.inspect(arguments.path)
    if arguments.json:
        _print([json.dumps(found, indent=2, sort_keys=True)])
    else:
        _print(inspection_text.lines_of(found))
    status = 0
    for file in found.get("files", []):
        if file["kind"] == "error":
            status = _fail(file["error"])
    return status


def _strip(arguments):
    planned = stripping.plan(arguments.checkpoint, arguments.meta_graph)
    keys = inspection.describe_keys(planned.checkpoint.keys, planned.verdicts)
    if not arguments.dry_run:
        stripping.strip(planned, arguments.out)
    elif arguments.out:
        stripping.check_out(planned, arguments.out)
    # A guess is always shown, what a graph decides where it is asked for.
    lines = inspection_text.judged_lines(
        keys, planned.meta_graph, "; --meta-graph FILE makes sure", "stays",
        "goes", lambda key: arguments.dry_run or key["by"] == "structure" and (
            planned.meta_graph or not key["model"]))
    for verb, is_model in (("stays", True), ("goes", False)):
        lines.append("{}: {}".format(verb, inspection_text.saved_line(
            [key for key in keys if key["model"] == is_model])))
    if not arguments.dry_run:
        lines.append("wrote " + arguments.out)
    _print(lines)
    return 0


def _print(lines):
    try:
        print("".join(line + "\n" for line in lines), end="", flush=True)
    except OSError as error:
        # Python would try again as it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        # Whoever reads from a pipe may have seen enough.
        if not isinstance(error, BrokenPipeError):
            raise FileTrouble("the output cannot be written: {}. All else is "
                              "done.".format(in_one_line(error)))


def _fail(message, status=1):
    print("tf1accum: {}".format(message), file=sys.stderr)
    return status


class _Stopped(BaseException):
    """A signal to end came."""

    def __init__(self, number):
        super().__init__(number)
        # As a shell has it.
        self.status = 128 + number


@contextlib.contextmanager
def _stoppable():
    """Signals to end raise `_Stopped`, so that what is begun is undone."""

    def stop(number, frame):
        del frame
        raise _Stopped(number)

    # Python allows it in the main thread alone.
    numbers = ([signal.SIGTERM, signal.SIGINT] if threading.current_thread()
               is threading.main_thread() else [])
    before = [signal.signal(number, stop) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before):
            signal.signal(number, handler)


if __name__ == "__main__":
    sys.exit(main())
