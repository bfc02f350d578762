"""A model that is trained a step by each request, and says which step that was."""

import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
import tensorflow as tf  # noqa: E402

layers = [tf.keras.layers.Input((32,)), tf.keras.layers.Dense(64, activation="relu"), tf.keras.layers.Dense(1)]
model, optimizer = tf.keras.Sequential(layers), tf.keras.optimizers.Adam(0.01)
steps, one = tf.Variable(0), threading.Lock()
inputs = tf.random.normal((64, 32), seed=1)


@tf.function
def step():
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(inputs) - tf.reduce_sum(inputs, 1, keepdims=True)) ** 2)
    optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True))
    steps.assign_add(1)
    return loss


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        with one:
            said = json.dumps({"loss": float(step()), "step": int(steps)}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *_):
        pass


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
