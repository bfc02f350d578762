"""ONNX Runtime: a convolutional network by its CUDA provider, as a CUDA graph."""

import numpy as np
import onnxruntime as ort
import steps
from onnx import TensorProto, helper, numpy_helper

SHAPE, CLASSES = (4, 3, 224, 224), 10
random = np.random.default_rng(0)
kernels = [random.standard_normal(shape, np.float32) / 20 for shape in ((64, 3, 7, 7), (128, 64, 3, 3), (128, 128, 3, 3))]
weights = [numpy_helper.from_array(kernel, f"kernel{n}") for n, kernel in enumerate(kernels)]
weights.append(numpy_helper.from_array(random.standard_normal((128, CLASSES), np.float32), "last"))
nodes, at = [], "x"
for n, kernel in enumerate(kernels):
    nodes.append(helper.make_node("Conv", [at, f"kernel{n}"], [f"sums{n}"], strides=[2, 2], pads=[kernel.shape[2] // 2] * 4))
    nodes.append(helper.make_node("Relu", [f"sums{n}"], [f"layer{n}"]))
    at = f"layer{n}"
nodes.append(helper.make_node("GlobalAveragePool", [at], ["means"]))
nodes.append(helper.make_node("Flatten", ["means"], ["flat"]))
nodes.append(helper.make_node("MatMul", ["flat", "last"], ["y"]))
ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (("x", SHAPE), ("y", (4, CLASSES)))]
model = helper.make_model(helper.make_graph(nodes, "net", ends[:1], ends[1:], weights), opset_imports=[helper.make_opsetid("", 17)])
model.ir_version = 9

ort.preload_dlls()
options = {"cudnn_conv_algo_search": "DEFAULT", "enable_cuda_graph": "1"}
session = ort.InferenceSession(model.SerializeToString(), providers=[("CUDAExecutionProvider", options)])
assert "CUDAExecutionProvider" in session.get_providers()
x, y = (ort.OrtValue.ortvalue_from_numpy(np.zeros(shape, np.float32), "cuda", 0) for shape in (SHAPE, (4, CLASSES)))
binding = session.io_binding()
binding.bind_ortvalue_input("x", x)
binding.bind_ortvalue_output("y", y)


def step(number):
    x.update_inplace(np.random.default_rng(number).standard_normal(SHAPE, np.float32))
    session.run_with_iobinding(binding)
    return steps.digest(y.numpy())


steps.make(step)
