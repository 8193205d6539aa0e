"""Restoring a model from a checkpoint, whoever wrote it."""

import collections
import os

import tensorflow.compat.v1 as tf

from tf1accum import graph_keys
from tf1accum import replicas
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


def restore_model(session, save_path, optional=()):
    """Restores the model, whoever wrote the file; initialises the rest.

    For checkpoints made without accumulation, or by a script that kept its own
    accumulators and slots in them: what the model has not is not read, and what
    the file has not is no error unless it is the model's. Training starts from
    the weights: windows are empty, and optimizers at their first step, also
    where the file has slots of the same name.

    The one thing to know: lookup tables and iterators are not restored.
    `model_saver().restore` does that, of files that have them.

    Args:
      session: a `tf.Session` whose graph is complete, finalised or not. No op
        is added to it. In a `MonitoredTrainingSession`:
        `Scaffold(init_fn=lambda scaffold, session: restore_model(...))`.
      save_path: prefix of a checkpoint, as `Saver.save` returns it.
      optional: list of variables of the model that the file may lack, such as
        a global step that is new; they get their initial value then.

    Returns:
      A `Restored`.

    Raises:
      TypeError: an argument is of the wrong type.
      ValueError: there is no checkpoint, or a variable of the model is missing
        in it, or has another shape or type there. Nothing was restored then.
    """
    who = "tf1accum.restore_model"
    _check_session(who, session)
    save_path = _checked_path(who, save_path)
    model = savers.model_variables(session.graph)
    _check_optional(who, optional, model)
    file = _read(who, save_path, lambda: tf.train.load_checkpoint(save_path))
    places = _places(who, file, model, set(map(replicas.name_of, optional)))
    # All is read before anything moves.
    whole = _read(who, save_path, lambda: {
        place.key: file.get_tensor(place.key) for place in places})
    for place in places:
        # Fed to the op that assigns the initial value: no op is added.
        value = whole[place.key]
        for initializer in _initializers(place.variable):
            session.run(initializer, {initializer.inputs[1]: (
                value if place.part is None else value[place.part])})
    restored = [replicas.name_of(place.variable) for place in places]
    return Restored(
        restored, _initialise_rest(session, model, restored),
        sorted(set(file.get_variable_to_shape_map()) - set(whole)))


def _check_session(who, session):
    if hasattr(session, "run_step_fn"):
        raise TypeError(
            "{}: session must be one without hooks; got {!r}. Restore in "
            "tf.train.Scaffold(init_fn=lambda scaffold, session: ...).".format(
                who, session))
    if not isinstance(getattr(session, "graph", None), tf.Graph):
        raise TypeError(
            "{}: session must be a tf.Session; got {!r}.".format(who, session))


def _checked_path(who, path):
    try:
        path = os.fspath(path)
        path = path.decode("utf-8") if isinstance(path, bytes) else path
    except TypeError:
        raise TypeError(
            "{}: save_path must be a path; got {!r}.".format(who, path))
    if path.endswith((".index", ".meta")) or ".data-" in path:
        raise ValueError(
            "{}: save_path must be the prefix of a checkpoint, without the end "
            "that tells its files apart; got {!r}.".format(who, path))
    return path


def _check_optional(who, optional, model):
    names = set(map(replicas.name_of, model))
    for variable in optional:
        if not hasattr(variable, "name") or (
                replicas.name_of(variable) not in names):
            raise ValueError(
                "{}: optional must list variables of the model; got "
                "{!r}.".format(who, variable))


def _read(who, save_path, function):
    try:
        return function()
    except (tf.errors.OpError, ValueError) as error:
        raise ValueError(
            "{}: save_path must be the prefix of a checkpoint, as Saver.save "
            "returns it; got {!r}: {}".format(
                who, save_path, str(error).partition("\n")[0]))


# key: of the checkpoint. shape: of what is there. part: slices of it that are
# the variable's, or None for all of it.
_Place = collections.namedtuple("_Place", "variable key shape part")


def _places(who, file, model, optional):
    """Where in `file` each variable of the model is, a list of `_Place`s."""
    shapes = file.get_variable_to_shape_map()
    dtypes = file.get_variable_to_dtype_map()
    places, wrong = [], []
    for place in map(_place, model):
        key, dtype = place.key, place.variable.dtype.base_dtype
        if key in shapes:
            places.append(place)
            if not place.shape.is_compatible_with(shapes[key]) or (
                    dtypes[key] != dtype):
                wrong.append("{} is {} of shape {} there, and {} of shape {} "
                             "in the graph".format(
                                 key, dtypes[key].name, shapes[key],
                                 dtype.name, place.shape))
        elif replicas.name_of(place.variable) not in optional:
            wrong.append("{} is not in it".format(key))
    if wrong:
        raise ValueError(
            "{}: the checkpoint must hold each variable of the model as it is, "
            "but for those that are `optional`; {}. `python -m tf1accum "
            "inspect` shows what it holds; a tf.train.Saver of a dict restores "
            "what has another name.".format(who, "; ".join(wrong)))
    return places


def _place(variable):
    whole = variable.to_proto().save_slice_info_def
    if whole.full_name:
        return _Place(variable, whole.full_name,
                      tf.TensorShape(whole.full_shape), tuple(
                          slice(offset, offset + length) for offset, length in
                          zip(whole.var_offset, whole.var_shape)))
    # A variable of no fixed shape takes what its initial value may be.
    return _Place(
        variable, replicas.name_of(variable), variable.shape.merge_with(
            _initializers(variable)[0].inputs[1].shape), None)


def _initializers(variable):
    return [part.initializer for part in replicas.parts(variable)]


def _initialise_rest(session, model, restored):
    """Initialises all else that can be; returns the names.

    Windows and optimizers start anew. Variables of others, such as a script's
    local ones, keep a value that they have.
    """
    graph = session.graph
    known = savers.known_variables(graph)
    anew = graph_keys.state_names(graph)
    anew.update(map(replicas.name_of, model))
    anew.difference_update(restored)
    session.run([_initializers(known[name]) for name in sorted(anew)])
    return sorted(anew) + [
        name for name in sorted(set(known) - anew - set(restored))
        if all([_initialised_now(session, part)
                for part in replicas.parts(known[name])])]


def _initialised_now(session, variable):
    try:
        session.run(variable)
    except tf.errors.FailedPreconditionError:
        try:
            session.run(variable.initializer)
            return True
        except tf.errors.InvalidArgumentError:
            # What it starts from is fed, by the script.
            pass
    return False
