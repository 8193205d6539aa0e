"""Trains on handwritten digits in a cluster, and kills a worker half way.

This process is the parameter server, which has the model. It starts two workers
that train it, each at its own pace: they accumulate k micro-batches of their
own, and then send the mean. The second is killed in the middle of a window, and
started again: that window is lost, and nothing else.

    python examples/distributed/parameter_servers.py --help
"""

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

import tensorflow.compat.v1 as tf

import tf1accum

# The network is that of the example one folder up.
sys.path.append(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import digits

HOST = "127.0.0.1"


def count_bytes(port, server_port, sent):
    """Adds up in `sent` what a server sends to those that call at `port`."""

    def pass_on(source, target, counted):
        for data in iter(lambda: source.recv(1 << 16), b""):
            sent[0] += len(data) if counted else 0
            target.sendall(data)

    def accept():
        while True:
            caller = listener.accept()[0]
            server = socket.create_connection((HOST, server_port))
            for ends in ((caller, server, False), (server, caller, True)):
                ends[0].setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(
                    target=pass_on, args=ends, daemon=True).start()

    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((HOST, port))
    listener.listen(8)
    threading.Thread(target=accept, daemon=True).start()


def serve(ports, job, task):
    return tf.train.Server(
        {name: ["%s:%d" % (HOST, port) for port in numbers]
         for name, numbers in ports.items()}, job_name=job, task_index=task)


def work(ports, task, own_port, folder, k, windows, total, killed):
    """Trains for so many windows; if `killed`, half of one more."""
    device, is_chief = "/job:worker/task:%d" % task, task == 0
    # Only to count, not for a program of your own: the parameter server fetches
    # gradients at another port of this worker, which counts.
    sent = [0]
    count_bytes(ports["worker"][task], own_port, sent)
    ports["worker"][task] = own_port

    with tf.device(tf.train.replica_device_setter(1, worker_device=device)):
        images, labels = digits.placeholders()
        scores = digits.network(images, training=True, normalise=False)
        loss = digits.mean_loss(scores, labels)
        accuracy = tf.reduce_mean(tf.cast(
            tf.equal(tf.argmax(scores, axis=1), labels), tf.float32))
        step = tf.train.get_or_create_global_step()
        ops = tf1accum.build(
            loss, optimizer=tf.train.AdamOptimizer(2e-3), k=k,
            global_step=step, worker_device=device)
        # Moves nothing, and sends what an optimizer does without a window.
        plain = tf.train.GradientDescentOptimizer(0.).minimize(loss)

    train_data, test_data = digits.load_digits()
    micro_batches = ({images: image_batch, labels: label_batch}
                     for image_batch, label_batch in digits.batches(
                         train_data, digits.MICRO_BATCH, [task, killed]))
    while not is_chief and not tf.train.latest_checkpoint(folder):
        # A session would look every 30 seconds whether the chief has begun.
        time.sleep(.1)
    hooks = [tf1accum.AccumulationHook(ops)]
    with tf.train.MonitoredTrainingSession(
            serve(ports, "worker", task).target, is_chief,
            folder if is_chief else None, chief_only_hooks=hooks,
            hooks=[] if is_chief else hooks,
            log_step_count_steps=None, config=tf.ConfigProto(
                device_filters=["/job:ps", device])) as sess:

        def run(fetches, feed=None):
            """Runs what is no micro-batch."""
            return sess.run_step_fn(lambda step_context:
                                    step_context.session.run(fetches, feed))

        def say(text, *values):
            print("worker %d, step %d: %s" % (
                task, run(step), text % values), flush=True)

        say("begins")
        before, done = sent[0], 0
        while done < windows:
            value = sess.run(loss, next(micro_batches))
            if run(ops.count) == 0:
                done += 1
                if done % max(windows // 4, 1) == 0:
                    say("%d of %d windows, loss %.4f", done, windows, value)
        trained = sent[0] - before
        if killed:
            for _ in range(k // 2):
                sess.run(loss, next(micro_batches))
            say("is killed, %d of %d micro-batches in its window",
                run(ops.count), k)
            os.kill(os.getpid(), signal.SIGKILL)
        while is_chief and run(step) < total:
            time.sleep(.1)
        if is_chief:
            before = sent[0]
            run(plain, next(micro_batches))
            say("sent %d bytes to the server for each micro-batch; without "
                "windows %d",
                trained // (windows * k), sent[0] - before)
            say("test accuracy: %.4f", run(
                accuracy, dict(zip((images, labels), test_data))))


def launch(k, windows):
    """Serves the model, starts the workers, and the second one again."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(5)]
        for one in sockets:
            one.bind((HOST, 0))
        free = [one.getsockname()[1] for one in sockets]
    ports = {"ps": free[:1], "worker": free[1:3]}
    server = serve(ports, "ps", 0)  # Serves as long as it is referred to.
    workers, half = [], windows // 2

    def start(task, windows_of_it, killed):
        settings = dict(
            ports=ports, task=task, own_port=free[3 + task], folder=folder,
            k=k, windows=windows_of_it, total=2 * windows, killed=killed)
        workers.append(subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), "--worker",
             json.dumps(settings)], stdin=subprocess.PIPE,
            start_new_session=True))
        return workers[-1]

    def wait(worker, status):
        # The chief is done when all are.
        while worker.poll() is None and not workers[0].poll():
            time.sleep(.1)
        if worker.poll() != status:
            sys.exit("a worker has failed")

    with tempfile.TemporaryDirectory() as folder:
        try:
            chief = start(0, windows, False)
            wait(start(1, half, True), -signal.SIGKILL)
            print("worker 1 is started again", flush=True)
            wait(start(1, windows - half, False), 0)
            wait(chief, 0)
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()


def main():
    parser = argparse.ArgumentParser(
        description="Trains on handwritten digits with a parameter server and "
        "two workers, and kills a worker half way.")
    parser.add_argument("--k", type=digits.positive, default=4,
                        help="micro-batches in a window (default: 4)")
    parser.add_argument("--windows", type=digits.positive, default=150,
                        help="windows of each worker (default: 150)")
    parser.add_argument("--worker", type=json.loads, help=argparse.SUPPRESS)
    arguments = parser.parse_args()

    tf.disable_v2_behavior()
    # Two workers move the step: the variables of before need a lock for that.
    tf.enable_resource_variables()
    tf.logging.set_verbosity(tf.logging.ERROR)
    if not arguments.worker:
        launch(arguments.k, arguments.windows)
        return
    # Nothing is written there: the read ends when the one that writes does.
    threading.Thread(target=lambda: os._exit(len(os.read(0, 1))),
                     daemon=True).start()
    work(**arguments.worker)
    # A server has no end.
    os._exit(0)


if __name__ == "__main__":
    main()
