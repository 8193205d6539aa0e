"""One rank of test_horovod.py: trains on its share, and saves what it has.

    horovodrun -np 2 python tests/horovod_worker.py FOLDER
"""

import os
import sys

import numpy as np
import tensorflow.compat.v1 as tf

import horovod.tensorflow as hvd
import shares
import tf1accum

# One micro-batch is left over, for flush.
MICRO_BATCHES = shares.WINDOWS * shares.K + 1


def train(rule, folder):
    """Saves the weights after each window, for `rule`."""
    rank = hvd.rank()
    # Rank 0 has what the test expects; the others get it from there.
    model = shares.Model(True, [value + rank for value in shares.START])
    step = tf.train.get_or_create_global_step()
    opt = tf1accum.AccumulatingOptimizer(
        shares.RULES[rule](), shares.K, transform=lambda pairs: [
            (hvd.allreduce(grad), variable) for grad, variable in pairs],
        name=rule)
    train_op = opt.minimize(model.loss, step)
    broadcast = hvd.broadcast_global_variables(0)
    seen = []
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(broadcast)
        for number, batch in enumerate(
                shares.batches_of(rank, MICRO_BATCHES), 1):
            session.run(train_op, model.feed(batch))
            if number % shares.K == 0:
                seen.append(session.run(model.variables))
        session.run(opt.flush)
        seen.append(session.run(model.variables))
        np.savez(os.path.join(folder, "{}-{}.npz".format(rule, rank)),
                 step=session.run(step), *[
                     value for values in seen for value in values])


def main(folder):
    tf.disable_v2_behavior()
    hvd.init()
    for rule in sorted(shares.RULES):
        with tf.Graph().as_default():
            train(rule, folder)
    hvd.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
