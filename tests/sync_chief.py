"""The chief of test_sync_replicas.py, as a process of its own.

    python tests/sync_chief.py ADDRESSES TASK
"""

import json
import sys

import tensorflow.compat.v1 as tf

import cluster
import shares
import tf1accum


def main(addresses, task):
    tf.disable_v2_behavior()
    server = tf.train.Server(addresses, job_name="worker", task_index=task)
    device = "/job:worker/task:%d" % task
    with tf.device(tf.train.replica_device_setter(
            cluster=addresses, worker_device=device)):
        model = shares.Model(use_resource=True)
        step = tf.train.get_or_create_global_step()
        sync = tf.train.SyncReplicasOptimizer(
            shares.RULES["momentum"](), shares.WORKERS,
            total_num_replicas=shares.WORKERS)
        train_op = tf1accum.AccumulatingOptimizer(
            sync, shares.K, worker_device=device, sparse="dense").minimize(
                model.loss, step)
    with tf.train.MonitoredTrainingSession(
            server.target, is_chief=True, config=cluster.config(task),
            hooks=[sync.make_session_run_hook(True, num_tokens=0),
                   tf.train.StopAtStepHook(last_step=shares.WINDOWS)],
            stop_grace_period_secs=1) as session:
        print("ready", flush=True)
        for batch in shares.batches_of(0):
            assert not session.should_stop()
            session.run(train_op, model.feed(batch))
        assert session.should_stop()
    print("done", flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), int(sys.argv[2]))
