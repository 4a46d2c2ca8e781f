"""PyTorch's side of the comparisons: the networks of apps/fashion_mnist.cpp, its weights, its batches."""

import gzip
import json
import pathlib
import struct

import numpy
import torch
from torch import nn

MEAN, DEVIATION = 0.2860, 0.3530


def network(model):
    """The app's network; parameters are called as they are there (linear1.weight, ...)."""
    layers = {
        "mlp": [("linear1", nn.Linear(784, 512)), ("relu1", nn.ReLU(inplace=True)),
                ("linear2", nn.Linear(512, 512)), ("relu2", nn.ReLU(inplace=True)),
                ("linear3", nn.Linear(512, 10))],
        "cnn": [("conv1", nn.Conv2d(1, 32, 3, padding=1)), ("relu1", nn.ReLU(inplace=True)), ("pool1", nn.MaxPool2d(2)),
                ("conv2", nn.Conv2d(32, 64, 3, padding=1)), ("relu2", nn.ReLU(inplace=True)), ("pool2", nn.MaxPool2d(2)),
                ("flatten", nn.Flatten()),
                ("linear1", nn.Linear(64 * 7 * 7, 128)), ("relu3", nn.ReLU(inplace=True)),
                ("linear2", nn.Linear(128, 10))],
    }[model]
    net = nn.Sequential()
    for name, layer in layers:
        net.add_module(name, layer)
    return net


def training_images(folder, model):
    """Normalised images, (n, 784) for the perceptron and (n, 1, 28, 28) for the convolutional network, and labels (n)."""
    def idx(name, dimensions):
        path = pathlib.Path(folder) / name
        raw = gzip.decompress(path.with_name(name + ".gz").read_bytes()) if not path.exists() else path.read_bytes()
        shape = struct.unpack_from(f">{dimensions}I", raw, 4)
        return numpy.frombuffer(raw, numpy.uint8, offset=4 + 4 * dimensions).reshape(shape)

    pixels = idx("train-images-idx3-ubyte", 3).astype(numpy.float32)
    images = torch.from_numpy((pixels / 255 - MEAN) / DEVIATION)
    labels = torch.from_numpy(idx("train-labels-idx1-ubyte", 1).astype(numpy.int64))
    return images.flatten(1) if model == "mlp" else images.unsqueeze(1), labels


def philox(counter, seed):
    """Philox 4x32-10 (Salmon et al. 2011), as in kernels/philox.hpp: four words for each of the given counters."""
    mask = numpy.uint64(0xFFFFFFFF)
    c0, c1, c2, c3 = (numpy.asarray(word, numpy.uint64) for word in counter)
    k0, k1 = seed & 0xFFFFFFFF, seed >> 32
    for _ in range(10):
        a, b = numpy.uint64(0xD2511F53) * c0, numpy.uint64(0xCD9E8D57) * c2
        c0, c2 = (b >> numpy.uint64(32)) ^ c1 ^ numpy.uint64(k0), (a >> numpy.uint64(32)) ^ c3 ^ numpy.uint64(k1)
        c1, c3 = b & mask, a & mask
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c0, c1, c2, c3


def shuffled(samples, seed, epoch):
    """The order in which the app visits the training set in `epoch` (from 1)."""
    element = numpy.arange(samples, dtype=numpy.uint64)
    low, high = element & numpy.uint64(0xFFFFFFFF), element >> numpy.uint64(32)
    everywhere = numpy.ones_like(element)
    w0, w1, _, _ = philox((low, high, everywhere * numpy.uint64(0xFFFFFFFF), everywhere * numpy.uint64(epoch)), seed)
    return torch.from_numpy(numpy.argsort(w1 << numpy.uint64(32) | w0, kind="stable"))


def batches(samples, batch, seed):
    """Indices of the samples of one batch after the other, without end."""
    epoch = 1
    while True:
        yield from shuffled(samples, seed, epoch).split(batch)
        epoch += 1


def read_safetensors(path):
    """A file of f32 tensors."""
    raw = pathlib.Path(path).read_bytes()
    size = struct.unpack_from("<Q", raw)[0]
    header = json.loads(raw[8:8 + size])
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if entry["dtype"] != "F32":
            raise ValueError(f"{path}: {name} is {entry['dtype']}, expected F32")
        begin, end = entry["data_offsets"]
        values = numpy.frombuffer(raw[8 + size + begin:8 + size + end], "<f4").copy()
        tensors[name] = torch.from_numpy(values).reshape(entry["shape"])
    return tensors


def write_safetensors(path, tensors):
    """A file of f32 tensors, in their order."""
    header, end = {}, 0
    for name, tensor in tensors.items():
        begin, end = end, end + 4 * tensor.numel()
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps({"__metadata__": {"format": "pt"}} | header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            file.write(tensor.detach().contiguous().numpy().astype("<f4").tobytes())


def load_weights(net, path):
    """Copies the app's weights into the network; shapes may differ by how the last axes are cut into dimensions."""
    given, wanted = read_safetensors(path), dict(net.named_parameters())
    if given.keys() != wanted.keys():
        raise ValueError(f"{path}: holds {sorted(given)}, expected {sorted(wanted)}")
    with torch.no_grad():
        for name, parameter in wanted.items():
            if given[name].numel() != parameter.numel():
                raise ValueError(f"{path}: {name} has shape {tuple(given[name].shape)}, expected {tuple(parameter.shape)}")
            parameter.copy_(given[name].reshape(parameter.shape))
