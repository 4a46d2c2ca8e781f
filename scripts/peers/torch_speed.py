"""One timed training run of PyTorch, as fast as a plain loop gets: the data are tensors in memory, no DataLoader,
gradients set to none, the optimizer updates all parameters at once.

    python -m peers.torch_speed mlp|cnn --threads N --data DIR (--epochs N | --steps N) [--layout channels_last]
    python -m peers.torch_speed text --threads N --data DIR --untimed N --steps N --layers N ... [--attention HOW]

The environment (OPENBLAS_CORETYPE, MALLOC_...) is the caller's. Prints images per second of each epoch behind the first, or
of `--steps` after as many again, one number a line; tokens per second of each quarter of `--steps` behind `--untimed` ones.
"""

import argparse
import dataclasses
import pathlib
import time

import torch

from peers import torch_gpt, torch_side

PARTS = 4
SHAPE = [field.name for field in dataclasses.fields(torch_gpt.Shape) if field.type is int]


def check(loss):
    if not loss.isfinite():
        raise RuntimeError(f"the loss is {loss.item()}")


def time_images(arguments):
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
        check(loss)
        if epoch > 0:
            print(sum(map(len, batches)) / (time.perf_counter() - start), flush=True)


def time_text(arguments):
    shape = torch_gpt.Shape("gpt2", **{name: getattr(arguments, name) for name in SHAPE})
    net = torch_gpt.LanguageModel(shape, arguments.attention)
    tokens = torch_gpt.read_tokens(pathlib.Path(arguments.data) / "train.tokens")
    settings = {"lr": 1e-4, "beta1": 0.9, "beta2": 0.95, "weight-decay": 0.1}
    optimizer = torch_gpt.optimizer(net, settings, foreach=arguments.optimizer == "foreach")
    parameters = list(net.parameters())
    batches = torch_gpt.batches(torch_gpt.window_count(tokens, shape.context), arguments.batch, 1)

    def train(steps):
        for _, chosen in zip(range(steps), batches):
            loss = torch_gpt.mean_loss(net, *torch_gpt.windows(tokens, chosen, shape.context))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
        check(loss)

    train(arguments.untimed)
    for steps in torch.arange(arguments.steps).tensor_split(min(arguments.steps, PARTS)):
        start = time.perf_counter()
        train(len(steps))
        print(len(steps) * arguments.batch * shape.context / (time.perf_counter() - start), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=["mlp", "cnn", "text"])
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=0)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--untimed", type=int, default=1)
    parser.add_argument("--layout", choices=["contiguous", "channels_last"], default="contiguous")
    parser.add_argument("--attention", choices=[*torch_gpt.ATTENTION, "multi_head"], default="masked")
    parser.add_argument("--optimizer", choices=["foreach", "for_loop"], default="foreach")
    parser.add_argument("--data", required=True)
    for name in SHAPE:
        parser.add_argument(f"--{name.replace('_', '-')}", type=int)
    arguments = parser.parse_args()

    torch.set_num_threads(arguments.threads)
    torch.manual_seed(1)
    (time_text if arguments.model == "text" else time_images)(arguments)


main()
