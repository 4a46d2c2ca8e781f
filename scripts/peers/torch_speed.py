"""One timed training run of PyTorch, as fast as a plain loop gets: images and labels are tensors in memory, no DataLoader,
gradients set to none, the optimizer updates all parameters at once.

    torch_speed.py mlp|cnn --threads N (--epochs N | --steps N) [--layout channels_last]

The environment (OPENBLAS_CORETYPE, MALLOC_...) is the caller's. Prints images per second of each epoch behind the first, or
of `--steps` after as many again; one number a line.
"""

import argparse
import time

import torch
import torch_side


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=["mlp", "cnn"])
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=0)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--layout", choices=["contiguous", "channels_last"], default="contiguous")
    parser.add_argument("--data", required=True)
    arguments = parser.parse_args()

    torch.set_num_threads(arguments.threads)
    torch.manual_seed(1)
    net = torch_side.network(arguments.model)
    images, labels = torch_side.training_images(arguments.data, arguments.model)
    if arguments.layout == "channels_last":
        net = net.to(memory_format=torch.channels_last)
        images = images.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, foreach=True)

    def train(chosen):
        loss = torch.nn.functional.cross_entropy(net(images[chosen]), labels[chosen])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss

    for epoch in range(max(arguments.epochs, 2 if arguments.steps else 0)):
        start = time.perf_counter()
        batches = torch.randperm(len(labels)).split(arguments.batch)
        batches = batches[:arguments.steps] if arguments.steps else batches
        for chosen in batches:
            loss = train(chosen)
        if not loss.isfinite():
            raise RuntimeError(f"the loss is {loss.item()}")
        if epoch > 0:
            print(sum(map(len, batches)) / (time.perf_counter() - start), flush=True)


main()
