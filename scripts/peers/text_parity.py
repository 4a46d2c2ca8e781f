"""The comparisons of scripts/parity that train language models with apps/gpt."""

import json
import pathlib
import random
import string
import tomllib

from peers import common

# Small, so that it takes seconds: 100 steps read the text one and a half times. That the learning rate is so small has
# the reason that docs/measuring.md gives.
SMALL = {"--layers": 2, "--context": 64, "--batch": 8, "--lr": 1e-3, "--lr-floor": 1e-4, "--warmup": 20}
PRESETS = {"gpt": "tiny", "llama": "tiny-llama"}
NORM_TOLERANCE = 10  # times that of the loss: the norm is steeper, and no mean
FINAL_TOLERANCE = {"f32": 0.01, "bf16": 0.02, "f16": 0.02}  # of the validation loss


def sample_text(words):
    """Sentences of made-up words, frequent and rare ones: something to learn, the same everywhere."""
    rng = random.Random(1)
    known = ["".join(rng.choices(string.ascii_lowercase, k=rng.randint(2, 9))) for _ in range(300)]
    chosen = rng.choices(known, weights=[1 / (i + 1) for i in range(len(known))], k=words)
    return "".join(word + (".\n" if i % 12 == 11 else " ") for i, word in enumerate(chosen))


def prepare_sample(app, folder, words):
    """A data folder for gpt train."""
    folder.mkdir()
    (folder / "sample.txt").write_text(sample_text(words))
    common.run(app, ["prepare", "--text", folder / "sample.txt", "--out", folder / "data"])
    return folder / "data"


def flags_of(arguments, given):
    """Command line of gpt train. What the user says goes before what `given` says."""
    said = {flag.split("=")[0] for flag in arguments.flags}
    flags = {"--preset": PRESETS[arguments.model], "--steps": arguments.steps, "--seed": arguments.seed,
             "--batch": arguments.batch, "--lr": arguments.lr, "--weight-decay": arguments.weight_decay}
    flags = given | {flag: value for flag, value in flags.items() if value is not None}
    return ["train", *(word for flag, value in flags.items() if flag not in said for word in (flag, value)),
            *arguments.flags]


def train_with_app(arguments, flags, out, dtype="f32"):
    """The lines of metrics.jsonl that are of steps, and the result."""
    metrics, _ = common.run_app(arguments.app, [*flags, "--dtype", dtype], out)
    return [line for line in metrics if "loss" in line], json.loads((out / "result.json").read_text())


def initial_weights(arguments, flags, out):
    """The folder of a checkpoint."""
    at = flags.index("--steps") if "--steps" in flags else len(flags)
    common.run_app(arguments.app, [*flags[:at], "--steps", 0, *flags[at + 2:]], out)
    return out / "checkpoints" / "step-00000000"


def settings_of(out):
    """Of the run in this folder, by the names of the flags."""
    return tomllib.loads((out / "config.toml").read_text())


def train_with_torch(checkpoint, settings, dtype="float32", progress=None):
    """The loss and the norm of the gradient of each step, as PyTorch computes them, and the trained network."""
    import torch
    from peers import torch_gpt, torch_side

    shape = torch_gpt.Shape.of_checkpoint(checkpoint)
    net = torch_gpt.LanguageModel(shape, attention="baddbmm" if progress else "masked")
    torch_side.load_weights(net, checkpoint / "model.safetensors")
    net = net.to(getattr(torch, dtype))
    tokens = torch_gpt.read_tokens(pathlib.Path(settings["data"]) / "train.tokens")
    count = torch_gpt.window_count(tokens, shape.context)
    optimizer = torch_gpt.optimizer(net, settings)
    losses, norms = [], []
    for step, chosen in zip(range(settings["steps"]), torch_gpt.batches(count, settings["batch"], settings["seed"])):
        loss = torch_gpt.mean_loss(net, *torch_gpt.windows(tokens, chosen, shape.context))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(net.parameters(), settings["clip"]).item())
        for group in optimizer.param_groups:
            group["lr"] = torch_gpt.learning_rate(step, settings)
        optimizer.step()
        losses.append(loss.item())
        if progress:
            progress(step + 1, losses[-1])
    return losses, norms, net


def compare_steps(arguments, folder):
    """Prints how far the losses and the gradient norms of the steps are from PyTorch's; returns the exit code."""
    import torch

    torch.set_num_threads(1)  # OpenMP's threads wait busily for each other: on a machine that is not idle, two are slower
    if arguments.data is None:
        arguments.data = prepare_sample(arguments.app, folder / "text", 10000)
    flags = flags_of(arguments, SMALL | {"--data": arguments.data, "--validate-every": 0, "--validation-batches": 1,
                                         "--save-every": 0, "--steps": 100})
    checkpoint = initial_weights(arguments, flags, folder / "initial")
    trained, _ = train_with_app(arguments, flags, folder / "trained", arguments.dtype)
    settings = settings_of(folder / "trained")
    if settings["clip"] <= 0:
        common.die("--clip must be above 0: the norm of the gradient is compared as well")
    if len(trained) != settings["steps"]:
        common.die(f"{arguments.app} recorded {len(trained)} steps instead of {settings['steps']}")
    ours, our_norms = [line["loss"] for line in trained], [line["gradient_norm"] for line in trained]
    theirs, their_norms, _ = train_with_torch(checkpoint, settings)
    print(f"{arguments.model}, {arguments.dtype}, {len(ours)} steps: loss {ours[0]:.4f} -> {ours[-1]:.4f}; "
          f"{sum(norm > settings['clip'] for norm in their_norms)} gradients clipped")
    good = [common.report("loss", ours, theirs, arguments.tolerance),
            common.report("gradient norm", our_norms, their_norms, NORM_TOLERANCE * arguments.tolerance)]
    if arguments.rounding:
        exact, exact_norms, _ = train_with_torch(checkpoint, settings, "float64")
        for what, a, b, c in ("loss", ours, theirs, exact), ("gradient norm", our_norms, their_norms, exact_norms):
            common.report_rounding(what, a, b, c)
    return 0 if all(good) else 1


def compare_final(arguments, folder):
    """Prints the validation losses of trained models; returns the exit code."""
    import time

    from peers import torch_gpt

    flags = flags_of(arguments, {"--data": arguments.data or common.ROOT / "data/bible"})
    checkpoint = initial_weights(arguments, flags, folder / "initial")
    found = {}
    for dtype in FINAL_TOLERANCE:
        _, result = train_with_app(arguments, flags, folder / dtype, dtype)
        found[dtype] = result["validation_loss"]
        print(f"ours, {dtype}, {result['steps']} steps: validation loss {found[dtype]:.4f}", flush=True)
    settings = settings_of(folder / "f32")
    start = time.monotonic()

    def progress(step, loss):
        if step % 100 == 0:
            print(f"PyTorch: step {step} of {settings['steps']}, loss {loss:.4f}, {time.monotonic() - start:.0f} s", flush=True)

    _, _, net = train_with_torch(checkpoint, settings, progress=progress)
    tokens = torch_gpt.read_tokens(pathlib.Path(settings["data"]) / "validation.tokens")
    theirs = torch_gpt.validation_loss(net, tokens, settings["context"], settings["batch"], settings["validation-batches"])
    print(f"PyTorch, f32, {settings['steps']} steps: validation loss {theirs:.4f}")
    good = True
    for dtype, most in FINAL_TOLERANCE.items():
        name, expected = ("PyTorch", theirs) if dtype == "f32" else ("our f32", found["f32"])
        difference = found[dtype] / expected - 1
        good = good and abs(difference) <= most  # false for NaN as well
        print(f"{dtype} against {name}: {difference:+.2%}; {'within' if abs(difference) <= most else 'NOT within'} {most:.0%}")
    return 0 if good else 1
