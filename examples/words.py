"""Trains word embeddings, with k micro-batches of sentences to each step.

A word is predicted from the words around it. The gradients of the tables are
sparse, and stay so. Sentences differ in length, so micro-batches differ in
their number of words; with that as `weight`, the mean over a window is the
mean over all of its words.

    python examples/words.py --help
"""

import argparse
import collections
import re
from pydoc_data import topics

import numpy as np
import tensorflow.compat.v1 as tf

import tf1accum

SENTENCES = 8  # in a micro-batch
REACH = 2  # words that are looked at on each side
SIZE = 32  # of an embedding
RAREST = 5  # times that a word has to occur
NEGATIVES = 64  # words that each word is told from


def load_sentences():
    """Sentences of Python's own help, as arrays of word ids, and the words.

    Words come most frequent first, as the sampler of the loss wants them.
    What is not a plain word, such as most code, is left out.
    """
    text = "\n\n".join(topics.topics[name] for name in sorted(topics.topics))
    sentences = [
        [token for token in (part.strip("*`\"'().,:;!?[]") for part in
                             sentence.split()) if token.isalpha()]
        for sentence in re.split(r"(?<=[.!?:;])\s+|\n\s*\n", text.lower())]
    counts = collections.Counter(sum(sentences, []))
    words = sorted((word for word in counts if counts[word] >= RAREST),
                   key=lambda word: (-counts[word], word))
    ids = {word: i for i, word in enumerate(words)}
    sentences = [np.array([ids[word] for word in sentence if word in ids])
                 for sentence in sentences]
    return [ids for ids in sentences if len(ids) > 2 * REACH], words


def micro_batches(sentences, seed):
    """Lists of `SENTENCES` sentences, in a new order each epoch, endless."""
    random = np.random.RandomState(seed)
    while True:
        order = random.permutation(len(sentences))
        for i in range(0, len(order) - SENTENCES + 1, SENTENCES):
            yield [sentences[j] for j in order[i:i + SENTENCES]]


class Model:
    """The tables, and the mean loss over the words of a micro-batch.

    A word is told from a sample of others: another one in each run, unless
    `fixed_negatives`, for a loss that is always the same.
    """

    def __init__(self, vocabulary, fixed_negatives=False):
        self.edge = vocabulary
        self.words = tf.placeholder(tf.int64, [None], name="words")
        self.contexts = tf.placeholder(
            tf.int64, [None, 2 * REACH], name="contexts")
        self.table = tf.get_variable(
            "embeddings", [vocabulary + 1, SIZE],
            initializer=tf.random_uniform_initializer(-.05, .05))
        zeros = tf.zeros_initializer()
        weights = tf.get_variable(
            "softmax/weights", [vocabulary, SIZE], initializer=zeros)
        biases = tf.get_variable(
            "softmax/biases", [vocabulary], initializer=zeros)
        self.number = tf.size(self.words, name="number")
        negatives = None
        if fixed_negatives:
            chosen = np.linspace(0, vocabulary - 1, NEGATIVES).astype(np.int64)
            negatives = (
                chosen, tf.ones([self.number, 1]), tf.ones([NEGATIVES]))
        around = tf.reduce_mean(
            tf.nn.embedding_lookup(self.table, self.contexts), axis=1)
        self.loss = tf.reduce_mean(tf.nn.sampled_softmax_loss(
            weights, biases, self.words[:, tf.newaxis], around, NEGATIVES,
            vocabulary, sampled_values=negatives))

    def feed(self, sentences):
        """Their words, and those around each; beyond the ends is an edge."""
        contexts = []
        for ids in sentences:
            padded = np.pad(
                ids, REACH, "constant", constant_values=self.edge)
            contexts.append(np.stack([padded[i:i + len(ids)] for i in range(
                2 * REACH + 1) if i != REACH], axis=1))
        return {self.words: np.concatenate(sentences),
                self.contexts: np.concatenate(contexts)}


def train(k, steps):
    """Trains, prints the progress, and at last the nearest words of some."""
    sentences, words = load_sentences()
    print("{:,} sentences of {:,} different words; a window is {} x {} "
          "sentences".format(len(sentences), len(words), k, SENTENCES))
    with tf.Graph().as_default():
        tf.set_random_seed(0)
        model = Model(len(words))
        ops = tf1accum.build(
            model.loss, optimizer=tf.train.AdagradOptimizer(1.), k=k,
            weight=model.number)
        losses = []
        with tf.Session() as sess:
            sess.run(tf.global_variables_initializer())
            batches = micro_batches(sentences, seed=1)
            for step in range(1, steps + 1):
                for _ in range(k):
                    sess.run(ops.accumulate, model.feed(next(batches)))
                seen, loss = sess.run([ops.weight, ops.average_loss])
                sess.run(ops.apply_and_reset)
                losses.append(loss)
                if step % max(steps // 10, 1) == 0 or step == steps:
                    print("window {:4d} of {}: {:.0f} words, mean loss {:.3f}; "
                          "since the last line {:.3f}".format(
                              step, steps, seen, loss, np.mean(losses)),
                          flush=True)
                    losses = []
            print_nearest(sess.run(model.table)[:-1], words)


def print_nearest(table, words, frequent=500, queries=10, neighbours=4):
    """Prints, for some frequent words, which others are the nearest."""
    directions = table / np.linalg.norm(table, axis=1, keepdims=True)
    # Short words are mostly "the" and "of", which are near to nothing.
    longer = [i for i, word in enumerate(words[:frequent]) if len(word) >= 5]
    print("\nnearest words, by the cosine")
    for i in longer[:queries]:
        nearest = np.argsort(-directions[longer].dot(directions[i]))
        print("  {:12} {}".format(words[i], ", ".join(
            words[longer[j]] for j in nearest[1:neighbours + 1])))


def weights_after(windows, k, whole_batches=False, weighted=True):
    """Weights after a few windows, or after as many steps on whole batches."""
    sentences, words = load_sentences()
    with tf.Graph().as_default():
        tf.set_random_seed(0)
        model = Model(len(words), fixed_negatives=True)
        optimizer = tf.train.AdagradOptimizer(1.)
        if whole_batches:
            step = optimizer.minimize(model.loss)
        else:
            ops = tf1accum.build(model.loss, optimizer=optimizer, k=k,
                                 weight=model.number if weighted else None)
        with tf.Session() as sess:
            sess.run(tf.global_variables_initializer())
            batches = micro_batches(sentences, seed=2)
            for _ in range(windows):
                window = [next(batches) for _ in range(k)]
                if whole_batches:
                    sess.run(step, model.feed(sum(window, [])))
                else:
                    for batch in window:
                        sess.run(ops.accumulate, model.feed(batch))
                    sess.run(ops.apply_and_reset)
            return sess.run(tf.trainable_variables())


def check_law(k, windows=10):
    """Prints how far windows and whole batches are from each other."""
    whole = weights_after(windows, k, whole_batches=True)
    with_weight, without = [
        max(np.max(np.abs(a - b)) for a, b in zip(
            whole, weights_after(windows, k, weighted=weighted)))
        for weighted in (True, False)]
    print("\nwith fixed negatives, {0} windows of {1} micro-batches against "
          "{0} whole batches:\nlargest difference between weights {2:.1e}; "
          "without weight=, {3:.1e}".format(windows, k, with_weight, without))


def positive(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return number


def main():
    parser = argparse.ArgumentParser(
        description="Trains word embeddings, with k micro-batches of sentences "
        "to each step.")
    parser.add_argument("--k", type=positive, default=4,
                        help="micro-batches in a window (default: 4)")
    parser.add_argument("--steps", type=positive, default=1500,
                        help="windows to train for (default: 1500)")
    arguments = parser.parse_args()

    tf.disable_v2_behavior()
    tf.logging.set_verbosity(tf.logging.ERROR)
    train(arguments.k, arguments.steps)
    check_law(arguments.k)


if __name__ == "__main__":
    main()
