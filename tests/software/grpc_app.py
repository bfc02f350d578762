"""A gRPC server: `grpc_app.py PORT`. One method without a schema, whose answer is JSON."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor

import grpc
from counter import Counter

counter = Counter()


def answer(request, context):
    return json.dumps(counter.next()).encode()


methods = {"Next": grpc.unary_unary_rpc_method_handler(answer)}
server = grpc.server(ThreadPoolExecutor(4))
server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("counter.Counter", methods)])
server.add_insecure_port(f"0.0.0.0:{sys.argv[1]}")
server.start()
server.wait_for_termination()
