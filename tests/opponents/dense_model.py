"""A dense Llama in plain torch, from a Hugging Face folder, and the steps that it trains: what the opponents of scripts/bench_axes
share. FOLDER holds config.json, model.safetensors, tokens.json (one batch of windows, each a token longer than the sequence) and
found.json (losses of Piper's first steps, and the gradient's norm
of the first)."""
import json
import pathlib

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn

import partner

CHECKED_STEPS = 3
OPTIMIZER = dict(lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)


def rotated(x, cos, sin):
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


class Norm(nn.Module):
    def __init__(self, hidden, epsilon):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))
        self.epsilon = epsilon

    def forward(self, x):
        return F.rms_norm(x, self.weight.shape, self.weight, self.epsilon)


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        hidden, self.head_dim = config["hidden_size"], config["head_dim"]
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(hidden, hidden, bias=False) for _ in range(4))

    def forward(self, x, cos, sin):
        heads = (*x.shape[:2], -1, self.head_dim)
        q, k, v = (projection(x).view(heads).transpose(1, 2) for projection in (self.q_proj, self.k_proj, self.v_proj))
        out = self.attend(rotated(q, cos, sin), rotated(k, cos, sin), v)
        return self.o_proj(out.transpose(1, 2).flatten(2))


    @staticmethod
    def attend(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class FeedForward(nn.Module):
    def __init__(self, config):
        super().__init__()
        hidden, ffn = config["hidden_size"], config["intermediate_size"]
        self.gate_proj, self.up_proj = (nn.Linear(hidden, ffn, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(ffn, hidden, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        hidden, epsilon = config["hidden_size"], config["rms_norm_eps"]
        self.input_layernorm, self.post_attention_layernorm = Norm(hidden, epsilon), Norm(hidden, epsilon)
        self.self_attn, self.mlp = Attention(config), FeedForward(config)

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    """Its parameters have transformers' names without the leading "model."."""

    def __init__(self, config):
        super().__init__()
        hidden = config["hidden_size"]
        self.embed_tokens = nn.Embedding(config["vocab_size"], hidden)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config["num_hidden_layers"]))
        self.norm = Norm(hidden, config["rms_norm_eps"])
        self.lm_head = nn.Linear(hidden, config["vocab_size"], bias=False)
        self.head_dim, self.theta = config["head_dim"], config["rope_theta"]

    def angles(self, first, length):
        """Cosines and sines of the positions first .. first + length."""
        frequencies = self.theta ** (-torch.arange(0, self.head_dim, 2) / self.head_dim)
        angles = torch.outer(torch.arange(first, first + length).float(), frequencies).repeat(1, 2)
        return angles.cos(), angles.sin()

    def forward(self, tokens, cos, sin):
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.lm_head(self.norm(x))


class Folder:
    """What partner.serve reads for `check ROWS FOLDER`; ROWS is the length of a sequence."""

    def __init__(self, path):
        path = pathlib.Path(path)
        self.config = json.loads((path / "config.json").read_text())
        self.windows = torch.tensor(json.loads((path / "tokens.json").read_text()))
        found = json.loads((path / "found.json").read_text())
        self.losses, self.norm = found["losses"], found["norm"]
        self.path = path

    def model(self):
        model = Llama(self.config)
        weights = {name.removeprefix("model."): tensor for name, tensor in load_file(self.path / "model.safetensors").items()}
        model.load_state_dict(weights)
        return model

    def my_windows(self):
        """This rank's part of the batch."""
        return self.windows.chunk(partner.WORLD)[partner.RANK]

    def errors(self, found, _):
        """The norm shows a gradient that is too large, which AdamW does not."""
        worst = 0.0
        for ours, theirs in zip(found["losses"], self.losses, strict=True):
            if not abs(ours - theirs) / abs(theirs) <= worst:  # not a number is the worst
                worst = abs(ours - theirs) / abs(theirs)
        return {"loss": worst, "gradient": abs(found["norm"] - self.norm) / self.norm, "tensor": "the norm of all"}


def groups_of(parameters):
    """Matrices decay, vectors do not; what is spread over ranks is never in one group with what is not."""
    made = {}
    for parameter in parameters:
        made.setdefault((parameter.dim() > 1, type(parameter.data)), []).append(parameter)
    return [dict(params=group, weight_decay=OPTIMIZER["weight_decay"] if decays else 0.0) for (decays, _), group in made.items()]


def loss_of(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())
