"""Restoring a model from a checkpoint, whoever wrote it."""

import collections

import tensorflow.compat.v1 as tf

from tf1accum import savers


class Restored(collections.namedtuple("Restored", (
        "restored", "initialized", "unused"))):
    """What `restore_model` did.

    Attributes:
      restored: names of the variables that have the file's values.
      initialized: names of those that have their initial value.
      unused: keys of the file that were left there.
    """

    __slots__ = ()


def restore_model(session, save_path):
    """Restores the model, whoever wrote the file; initialises the rest.

    For checkpoints made without accumulation, or by a script that kept its own
    accumulators and slots in them: what the model has not is not read, and what
    the file has not is no error unless it is the model's. Training starts from
    the weights: windows are empty, optimizers at their first step.

    The one thing to know: lookup tables and iterators are not restored.
    `model_saver().restore` does that, of files that have them.

    Args:
      session: a `tf.Session` whose graph is complete, finalised or not. No op
        is added to it.
      save_path: prefix of a checkpoint, as `Saver.save` returns it.

    Returns:
      A `Restored`.

    Raises:
      TypeError: `session` is none.
      ValueError: there is no checkpoint, or a variable of the model is missing
        in it, or has another shape or type there. Nothing was restored then.
    """
    who = "tf1accum.restore_model"
    graph = getattr(session, "graph", None)
    if not isinstance(graph, tf.Graph):
        raise TypeError(
            "{}: session must be a tf.Session; got {!r}.".format(who, session))
    model = savers.model_variables(graph)
    file = _read(who, save_path, lambda: tf.train.load_checkpoint(save_path))
    keys = _checked_keys(who, file, model)
    values = _read(who, save_path, lambda: [
        file.get_tensor(key)[part] for key, part in keys])
    for variable, value in zip(model, values):
        # Fed to the op that assigns the initial value: no op is added.
        session.run(variable.initializer, {
            variable.initializer.inputs[1]: value})
    names = {variable.op.name for variable in model}
    rest = [variable for name, variable in sorted(
        savers.known_variables(graph).items()) if name not in names]
    session.run([variable.initializer for variable in rest])
    return Restored(
        [variable.op.name for variable in model],
        [variable.op.name for variable in rest],
        sorted(set(file.get_variable_to_shape_map()) - {
            key for key, _ in keys}))


def _read(who, save_path, function):
    try:
        return function()
    except (tf.errors.OpError, ValueError) as error:
        raise ValueError(
            "{}: save_path must be the prefix of a checkpoint, as Saver.save "
            "returns it; got {!r}: {}".format(
                who, save_path, str(error).partition("\n")[0]))


def _checked_keys(who, file, model):
    """The key in `file` of each variable, and which part of it is its own."""
    shapes = file.get_variable_to_shape_map()
    dtypes = file.get_variable_to_dtype_map()
    keys, wrong = [], []
    for variable in model:
        key, shape, part = _place(variable)
        keys.append((key, part))
        if key not in shapes:
            wrong.append("{} is not in it".format(key))
        elif not shape.is_compatible_with(shapes[key]) or (
                dtypes[key] != variable.dtype.base_dtype):
            wrong.append("{} is {} of shape {} there, and {} of shape {} in "
                         "the graph".format(
                             key, dtypes[key].name, shapes[key],
                             variable.dtype.base_dtype.name, shape))
    if wrong:
        raise ValueError(
            "{}: the checkpoint must hold each variable of the model as it is; "
            "{}. `python -m tf1accum inspect` shows what it holds; "
            "tf.train.Saver takes a dict from other names.".format(
                who, "; ".join(wrong)))
    return keys


def _place(variable):
    """(key, shape there, what of it is the variable's) in a checkpoint."""
    whole = variable.to_proto().save_slice_info_def
    if not whole.full_name:
        return variable.op.name, variable.shape, Ellipsis
    return whole.full_name, tf.TensorShape(whole.full_shape), tuple(
        slice(offset, offset + length)
        for offset, length in zip(whole.var_offset, whole.var_shape))
