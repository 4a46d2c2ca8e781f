"""GPT-2 and Llama in plain PyTorch, as published, with the parameter names and shapes of Hugging Face's models.

GPT-2: Radford et al., Language Models are Unsupervised Multitask Learners, 2019. Llama: Touvron et al., LLaMA, 2023, with
the grouped-query attention of Ainslie et al., 2023. Shapes in comments: batch B, sequence T, width E, heads H, key-value
heads G, head dimension D, vocabulary V.
"""

import dataclasses
import itertools
import json
import math
import pathlib

import numpy
import torch
from torch import nn
from torch.nn import functional as F

from peers import token_file, torch_side

DEVIATION = 0.02  # of initial weights


@dataclasses.dataclass
class Shape:
    """What `gpt train` calls the model; a checkpoint's state.json and a Hugging Face config.json both say it."""
    kind: str
    layers: int
    heads: int
    key_value_heads: int
    head_dim: int
    hidden: int
    context: int
    vocabulary: int
    epsilon: float = 1e-5
    rotary_base: float = 10000.0
    tied: bool = True

    @property
    def width(self):
        return self.heads * self.head_dim

    @staticmethod
    def of_checkpoint(folder):
        contents = json.loads((pathlib.Path(folder) / "state.json").read_text())["contents"]
        told = contents["model"]
        names = {field.name for field in dataclasses.fields(Shape)}
        return Shape(**{key: value for key, value in told.items() if key in names}, vocabulary=contents["vocabulary"],
                     tied=not told["untied"])

    def hugging_face(self):
        """The contents of config.json."""
        if self.kind == "gpt2":
            return {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "activation_function": "gelu_new",
                    "n_layer": self.layers, "n_head": self.heads, "n_embd": self.width, "n_inner": self.hidden,
                    "n_positions": self.context, "n_ctx": self.context, "vocab_size": self.vocabulary,
                    "layer_norm_epsilon": self.epsilon, "tie_word_embeddings": self.tied, "torch_dtype": "float32"}
        return {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu",
                "num_hidden_layers": self.layers, "num_attention_heads": self.heads,
                "num_key_value_heads": self.key_value_heads, "hidden_size": self.width, "head_dim": self.head_dim,
                "intermediate_size": self.hidden, "max_position_embeddings": self.context, "vocab_size": self.vocabulary,
                "rms_norm_eps": self.epsilon, "rope_theta": self.rotary_base, "rope_scaling": None,
                "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": self.tied, "torch_dtype": "float32"}


# How attention is computed; all give the same but for rounding. q (B, H, T, D), k and v as large.

def attend_masked(q, k, v):
    future = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).triu(1)
    scores = (q @ k.transpose(2, 3) / math.sqrt(q.shape[3])).masked_fill(future, -math.inf)
    return F.softmax(scores, dim=-1) @ v


def attend_baddbmm(q, k, v):
    """The product adds the mask."""
    batch, heads, length, dim = q.shape
    future = torch.full((length, length), -math.inf, dtype=q.dtype).triu(1)
    q, k, v = (x.reshape(batch * heads, length, dim) for x in (q, k, v))
    scores = torch.baddbmm(future, q, k.transpose(1, 2), alpha=1 / math.sqrt(dim))
    return torch.bmm(F.softmax(scores, dim=-1), v).view(batch, heads, length, dim)


def attend_builtin(q, k, v):
    """What became F.scaled_dot_product_attention in PyTorch 2."""
    if hasattr(F, "scaled_dot_product_attention"):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return F._scaled_dot_product_attention(q, k, v, None, 0.0, False, True)[0]  # pylint: disable=protected-access


ATTENTION = {"masked": attend_masked, "baddbmm": attend_baddbmm, "builtin": attend_builtin}


class Conv1D(nn.Module):
    """An affine layer whose weight is (in, out)."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.empty(outputs))

    def forward(self, x):
        return torch.addmm(self.bias, x.reshape(-1, x.shape[-1]), self.weight).view(*x.shape[:-1], -1)


class Gpt2Attention(nn.Module):
    def __init__(self, shape, attention):
        super().__init__()
        self.shape, self.attention = shape, attention
        self.c_attn = Conv1D(shape.width, 3 * shape.width)
        self.c_proj = Conv1D(shape.width, shape.width)

    def forward(self, x):
        batch, length, width = x.shape
        if self.attention == "multi_head":
            future = torch.full((length, length), -math.inf, dtype=x.dtype).triu(1)
            x = x.transpose(0, 1)  # it wants (T, B, E)
            y, _ = F.multi_head_attention_forward(
                x, x, x, width, self.shape.heads, self.c_attn.weight.t(), self.c_attn.bias, None, None, False, 0.0,
                self.c_proj.weight.t(), self.c_proj.bias, need_weights=False, attn_mask=future)
            return y.transpose(0, 1)
        q, k, v = (part.view(batch, length, self.shape.heads, -1).transpose(1, 2) for part in self.c_attn(x).chunk(3, -1))
        return self.c_proj(ATTENTION[self.attention](q, k, v).transpose(1, 2).reshape(batch, length, width))


class Gpt2Mlp(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.c_fc = Conv1D(shape.width, shape.hidden)
        self.c_proj = Conv1D(shape.hidden, shape.width)

    def forward(self, x):
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class Gpt2Block(nn.Module):
    def __init__(self, shape, attention):
        super().__init__()
        self.ln_1 = nn.LayerNorm(shape.width, shape.epsilon)
        self.attn = Gpt2Attention(shape, attention)
        self.ln_2 = nn.LayerNorm(shape.width, shape.epsilon)
        self.mlp = Gpt2Mlp(shape)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Gpt2(nn.Module):
    """Everything below the output layer."""

    def __init__(self, shape, attention):
        super().__init__()
        self.wte = nn.Embedding(shape.vocabulary, shape.width)
        self.wpe = nn.Embedding(shape.context, shape.width)
        self.h = nn.ModuleList(Gpt2Block(shape, attention) for _ in range(shape.layers))
        self.ln_f = nn.LayerNorm(shape.width, shape.epsilon)

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe.weight[:tokens.shape[1]]
        for block in self.h:
            x = block(x)
        return self.ln_f(x)


class RmsNorm(nn.Module):
    def __init__(self, width, epsilon):
        super().__init__()
        self.epsilon = epsilon
        self.weight = nn.Parameter(torch.empty(width))

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.epsilon) * self.weight


class Rotary(nn.Module):
    """Turns the pairs of elements i and i + D/2 by angles that grow with the position (Su et al., 2021)."""

    def __init__(self, shape):
        super().__init__()
        halves = torch.arange(0, shape.head_dim, 2, dtype=torch.float64) / shape.head_dim
        angles = torch.outer(torch.arange(shape.context, dtype=torch.float64), shape.rotary_base ** -halves)
        angles = torch.cat((angles, angles), -1)  # (T, D)
        self.cos, self.sin = angles.cos(), angles.sin()  # in f64 for models in any type

    def forward(self, x):
        length, half = x.shape[2], x.shape[3] // 2
        turned = torch.cat((-x[..., half:], x[..., :half]), -1)
        return x * self.cos[:length].to(x.dtype) + turned * self.sin[:length].to(x.dtype)


class LlamaAttention(nn.Module):
    def __init__(self, shape, attention):
        super().__init__()
        self.shape, self.attention = shape, ATTENTION[attention]
        narrow = shape.key_value_heads * shape.head_dim
        self.q_proj = nn.Linear(shape.width, shape.width, bias=False)
        self.k_proj = nn.Linear(shape.width, narrow, bias=False)
        self.v_proj = nn.Linear(shape.width, narrow, bias=False)
        self.o_proj = nn.Linear(shape.width, shape.width, bias=False)

    def forward(self, x, rotary):
        batch, length, width = x.shape
        q, k, v = (project(x).view(batch, length, -1, self.shape.head_dim).transpose(1, 2)
                   for project in (self.q_proj, self.k_proj, self.v_proj))
        q, k = rotary(q), rotary(k)
        # Key-value head g serves the query heads g H/G, ..., (g + 1) H/G - 1.
        k, v = (y.repeat_interleave(self.shape.heads // self.shape.key_value_heads, dim=1) for y in (k, v))
        return self.o_proj(self.attention(q, k, v).transpose(1, 2).reshape(batch, length, width))


class LlamaMlp(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.gate_proj = nn.Linear(shape.width, shape.hidden, bias=False)
        self.up_proj = nn.Linear(shape.width, shape.hidden, bias=False)
        self.down_proj = nn.Linear(shape.hidden, shape.width, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class LlamaBlock(nn.Module):
    def __init__(self, shape, attention):
        super().__init__()
        self.input_layernorm = RmsNorm(shape.width, shape.epsilon)
        self.self_attn = LlamaAttention(shape, attention)
        self.post_attention_layernorm = RmsNorm(shape.width, shape.epsilon)
        self.mlp = LlamaMlp(shape)

    def forward(self, x, rotary):
        x = x + self.self_attn(self.input_layernorm(x), rotary)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    """Everything below the output layer."""

    def __init__(self, shape, attention):
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.layers = nn.ModuleList(LlamaBlock(shape, attention) for _ in range(shape.layers))
        self.norm = RmsNorm(shape.width, shape.epsilon)
        self.rotary = Rotary(shape)

    def forward(self, tokens):
        x = self.embed_tokens(tokens)
        for block in self.layers:
            x = block(x, self.rotary)
        return self.norm(x)


class LanguageModel(nn.Module):
    """logits (B, T, V) of tokens (B, T). `attention`: a key of ATTENTION, or multi_head for GPT-2."""

    def __init__(self, shape, attention="masked"):
        super().__init__()
        if shape.kind == "gpt2":
            self.transformer = Gpt2(shape, attention)
        else:
            self.model = Llama(shape, attention)
        if not shape.tied:
            self.lm_head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        self.kind, self.tied = shape.kind, shape.tied
        self.initialise()

    def initialise(self):
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if parameter.dim() > 1:
                    parameter.normal_(0, DEVIATION)
                else:
                    parameter.fill_(0 if name.endswith("bias") else 1)

    def forward(self, tokens):
        if self.kind == "gpt2":
            x, embedding = self.transformer(tokens), self.transformer.wte
        else:
            x, embedding = self.model(tokens), self.model.embed_tokens
        return F.linear(x, embedding.weight if self.tied else self.lm_head.weight)


def mean_loss(net, tokens, targets):
    """Mean over all tokens of -log of the probability of the target."""
    return F.cross_entropy(net(tokens).flatten(0, 1), targets.flatten())


def optimizer(net, settings, foreach=None):
    """AdamW that decays matrices, but neither biases nor the weights of norms."""
    groups = [{"params": [p for p in net.parameters() if p.dim() > 1], "weight_decay": settings["weight-decay"]},
              {"params": [p for p in net.parameters() if p.dim() <= 1], "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=settings["lr"], betas=(settings["beta1"], settings["beta2"]), foreach=foreach)


def learning_rate(step, settings):
    """Of step 0, 1, ..., as layers/schedule.hpp says."""
    peak, floor, steps, warmup = (settings[key] for key in ("lr", "lr-floor", "steps", "warmup"))
    if step < warmup:
        return peak * (step + 1) / warmup
    begin = max(warmup, steps - settings["cooldown"]) if settings["schedule"] == "stable" else warmup
    if settings["schedule"] == "constant" or step < begin:
        return peak
    done = (min(step, steps) - begin) / max(steps - begin, 1)
    left = (1 + math.cos(math.pi * done)) / 2 if settings["schedule"] == "cosine" else 1 - done
    return floor + (peak - floor) * left


def read_tokens(path):
    ids, _ = token_file.read(path)
    return torch.from_numpy(numpy.asarray(ids, numpy.int64))


def window_count(tokens, length):
    return (len(tokens) - 1) // length


def windows(tokens, numbers, length):
    """Inputs and targets, both (B, T), of the windows of these numbers: window w is the length + 1 tokens from w length on."""
    chosen = tokens[numbers.unsqueeze(1) * length + torch.arange(length + 1)]
    return chosen[:, :-1], chosen[:, 1:]


def batches(count, batch, seed):
    """Numbers of the windows of one batch after the other, without end, as TokenBatches in framework/io/tokens.hpp says:
    epochs, from 0, follow each other without a gap."""
    left = torch.empty(0, dtype=torch.int64)
    for epoch in itertools.count():
        left = torch.cat((left, torch_side.shuffled(count, seed, epoch)))
        while len(left) >= batch:
            yield left[:batch]
            left = left[batch:]


def validation_loss(net, tokens, length, batch, most_batches):
    """Mean over the first batches of windows, at most so many, in the order of the text."""
    count = window_count(tokens, length)
    full = max(count // batch, 1)
    losses = []
    with torch.no_grad():
        for first in range(0, min(most_batches, full) * batch, batch):
            losses.append(mean_loss(net, *windows(tokens, torch.arange(first, first + batch) % count, length)).item())
    return sum(losses) / len(losses)
