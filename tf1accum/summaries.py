"""Summaries of a window, for TensorBoard."""

import itertools
import re

import tensorflow.compat.v1 as tf

from tf1accum import graph_keys
from tf1accum import train_ops


def add_summaries(ops, histograms=False, collections=None, name="summaries"):
    """Adds the summary of a window: its loss, its gradient, what it holds.

        mean gradient norm = sqrt(sum of squares of (w_1 g_1 + ... + w_r g_r)
                                  / (w_1 + ... + w_r), over all variables)

    Of each window, under tags that begin with its name: `average_loss`,
    `mean_gradient_norm` (before any `transform`; rows of one index are added up
    first), `count` (micro-batches in it), `weight`, `skipped` (since the
    start), and `gradient/<variable>`, a histogram. What the ops do not have is
    left out.

    The one thing to know: run it while the window is open, in the run of
    `apply` or in one before; in that of `apply_and_reset` it may find the
    window empty. Sessions that run what is in the collections by themselves do
    so at any time, so there something has to give them a closed window:

    - In a `MonitoredTrainingSession`, or an Estimator, an `AccumulationHook`
      runs it for each window that it closes. Given a `summary_writer`, it
      writes each once, the last one too. Else whatever fetches it in the runs
      of the session, such as a `SummarySaverHook`, gets that.
    - The train op of `AccumulatingOptimizer` closes its windows itself, so it
      has to know of it beforehand: `AccumulatingOptimizer(optimizer, k,
      summarize=tf1accum.add_summaries)`. What is in the collections is then
      what the last apply has kept, in memory and in no checkpoint.

    What is fetched is the window that was closed last when the run began, and
    nothing until then: not the window that the last run of all closes. If k is
    3 or more, a `SummarySaverHook` with save_steps of n + 2 writes every n-th
    window once, at its global step. One that looks at more runs than that
    writes windows more than once, and a run that closes a window gives the one
    before it: at the next step. So does each run with a k of 1.

    Args:
      ops: `AccumulationOps`, as `build` returns it.
      histograms: whether to add a histogram of each variable's mean gradient:
        of its finite values; of the rows that were looked up if it is sparse.
        TensorFlow takes some 0.2 s for a million values, once a window.
      collections: list of the graph collections that list the merged summary,
        or None for `[tf.GraphKeys.SUMMARIES]`, which `tf.summary.merge_all`
        merges and `MonitoredTrainingSession` and Estimators write.
      name: scope of what is added, inside of that of `ops`; a number is added
        where it is taken.

    Returns:
      A scalar string tensor, the merged summary, for
      `tf.summary.FileWriter.add_summary`.

    Raises:
      TypeError: an argument is of the wrong type.
      ValueError: `ops` are those of a train op, which is built already; or one
        of `collections` lists a summary of them; or `name` is no name.
    """
    who = "tf1accum.add_summaries"
    if collections is None:
        collections = [tf.GraphKeys.SUMMARIES]
    _check(who, ops, collections, name)
    if ops.apply is None:
        # Called by the builder, where the window is read inside of an apply.
        return _keep(_merge(ops, histograms), ops.name, name, collections)
    graph = ops.graph
    with graph.as_default(), tf.control_dependencies(None), tf.device(
            None), graph.colocate_with(None, ignore_existing=True), tf.device(
                ops.count.device):
        with tf.name_scope(_free_scope(graph, ops.name + "/" + name)):
            read = _merge(ops, histograms)
            # Who fetched what a hook feeds would get an array, not bytes.
            summary = tf.identity(read, name="merged")
    graph_keys.remember(graph, ops.name, graph_keys.SUMMARIES, [read])
    _list(graph, summary, collections)
    return summary


def _check(who, ops, collections, name):
    train_ops.check(who, ops)
    if ops.step is not None:
        raise ValueError(
            "{}: ops must be those of a builder; got {!r}, whose train op "
            "closes its windows itself, before they can be read. Have it "
            "summarise them: tf1accum.AccumulatingOptimizer(optimizer, k, "
            "summarize=tf1accum.add_summaries).".format(who, ops))
    if not isinstance(collections, (list, tuple)) or any(
            not isinstance(key, str) for key in collections):
        raise TypeError(
            "{}: collections must be a list of names of graph collections; got "
            "{!r}.".format(who, collections))
    if not isinstance(name, str) or not re.match(
            r"[A-Za-z0-9.][A-Za-z0-9_.-]*$", name):
        raise ValueError(
            "{}: name must be that of one scope, of letters, digits and "
            "\"_.-\"; got {!r}.".format(who, name))
    # Two summaries of one tag can't be merged, and a hook would find that out
    # in the middle of the training.
    there = [summary for summary in graph_keys.recall(
        ops.graph, graph_keys.SUMMARIES)
             if summary.op.name.startswith(ops.name + "/")]
    for key in collections:
        for entry in ops.graph.get_collection(key):
            if isinstance(entry, tf.Tensor) and ops.apply is not None and any(
                    source is summary for source in entry.op.inputs
                    for summary in there):
                raise ValueError(
                    "{}: a collection may list one summary of a window; {!r} "
                    "lists {} of {!r}. Use that one, or another of "
                    "`collections`.".format(who, key, entry.name, ops))


def _free_scope(graph, scope):
    # TensorFlow does not know the scopes of ops that were imported.
    taken = [op.name for op in graph.get_operations()
             if op.name.startswith(scope)]
    for number in itertools.count():
        free = "{}_{}/".format(scope, number) if number else scope + "/"
        if not any(name.startswith(free) for name in taken):
            return free


def _merge(ops, histograms):
    """The merged summary, of tensors read where those of `ops` are."""
    unit = 1 if ops.reduction == "sum" or tf.is_tensor(ops.k) else ops.k
    weight = ops.count if ops.weight is None else ops.weight
    rescale = tf.math.divide_no_nan(
        tf.constant(unit, tf.float64, name="unit"),
        tf.cast(weight, tf.float64, name="sum_of_weights"), name="rescale")
    halves, parts = [], []
    for read, variable in zip(ops.accumulators, ops.variables):
        tag = "gradient/" + variable.op.name
        with tf.name_scope(tag):
            values = _values(read)
            # In float32, squares are lost above 1e19 and below 1e-19.
            halves.append(tf.nn.l2_loss(
                tf.cast(values, tf.float64, name="wide"), name="half_square"))
            if histograms:
                parts.append(_histogram(ops.name + "/" + tag, values, rescale))
    with tf.name_scope("norm"):
        norm = tf.multiply(
            tf.sqrt(2. * tf.add_n(halves)), rescale, name="rescaled")
    # By tf.summary.scalar, a tag would hold the scope that it is called in.
    parts += [
        tf.raw_ops.ScalarSummary(
            tags=ops.name + "/" + what, values=value, name=what)
        for what, value in (
            ("average_loss", ops.average_loss),
            ("mean_gradient_norm", norm),
            ("count", ops.count), ("weight", ops.weight),
            ("skipped", ops.skipped)) if value is not None]
    return tf.raw_ops.MergeSummary(inputs=parts, name="open_window")


def _values(read):
    """What an accumulator holds, at least in float32, each index once."""
    values = getattr(read, "values", read)
    with tf.get_default_graph().colocate_with(values.op):
        if hasattr(read, "indices"):
            indices, place = tf.unique(read.indices)
            values = tf.math.unsorted_segment_sum(
                values, place, tf.size(indices))
        return values if values.dtype == tf.float64 else tf.cast(
            values, tf.float32)


def _histogram(tag, values, rescale):
    # TensorFlow makes no histogram of what is not finite, but an error.
    flat = tf.reshape(values, [-1])
    finite = tf.gather_nd(flat, tf.raw_ops.Where(
        condition=tf.math.is_finite(flat)))
    rescale = tf.cast(rescale, values.dtype, name="rescale")
    # Of nothing there is none: TensorBoard would draw it at infinity.
    something = tf.raw_ops.Switch(
        data=finite * rescale, pred=tf.size(finite) > 0, name="something")
    # Of the Switch itself, a control dependency would always be met.
    nothing = tf.identity(something.output_false, name="nothing")
    with tf.control_dependencies([nothing]):
        none = tf.constant("", name="none")
    return tf.raw_ops.Merge(inputs=[none, tf.raw_ops.HistogramSummary(
        tag=tag, values=something.output_true, name="histogram")],
                            name="histogram_or_none").output


def _keep(summary, box, name, collections):
    """`summary`, once it is kept for those who read it in other runs."""
    with tf.init_scope():
        # Built for each op that applies; all keep it in the same place.
        last, = graph_keys.recall_of(
            tf.get_default_graph(), "{}/{}".format(box, name),
            graph_keys.SUMMARIES) or [
                _make_place(box, name, collections, summary.device)]
    table, key, _ = last.op.inputs
    # Who reads it in the same run gets the window before, always. (A branch is
    # a graph of its own, which can't wait for ops of this one.)
    before = [last.op] if last.graph is tf.get_default_graph() else []
    with tf.control_dependencies(before):
        kept = tf.raw_ops.LookupTableInsertV2(
            table_handle=table, keys=key, values=summary, name="keep")
    with tf.control_dependencies([kept]):
        return tf.identity(summary, name="kept")


def _make_place(box, name, collections, device):
    graph, scope = tf.get_default_graph(), "{}/{}".format(box, name)
    with tf.device(None), tf.device(device), tf.name_scope(scope + "/"):
        # Not a variable: no checkpoint is to hold it, nor to lack it.
        table = tf.raw_ops.MutableHashTableV2(
            key_dtype=tf.int64, value_dtype=tf.string, name="table",
            use_node_name_sharing=True)
        last = tf.raw_ops.LookupTableFindV2(
            table_handle=table, keys=tf.constant(0, tf.int64, name="key"),
            default_value="", name="last_window")
    last.set_shape([])
    graph_keys.remember(graph, box, graph_keys.SUMMARIES, [last])
    _list(graph, last, collections)
    return last


def _list(graph, summary, collections):
    for key in collections:
        graph.add_to_collection(key, summary)
