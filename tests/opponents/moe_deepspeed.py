"""x + MoE(norm(x)) by DeepSpeed's mixture layer, top 2, no token dropped, experts over the ranks (see partner.py).

DeepSpeed pads every expert to the rows of the fullest one; gate and up of an expert are one product, as on the other sides."""
import logging
import os

import partner  # first: from here on, what libraries print does not go where answers do

os.environ.setdefault("DS_ACCELERATOR", "cpu")
import deepspeed
import torch
import torch.nn.functional as F
from deepspeed.moe.layer import MoE

import moe_torch


class Expert(torch.nn.Module):
    def __init__(self, hidden, ffn):
        super().__init__()
        self.gate_up = torch.nn.Linear(hidden, 2 * ffn, bias=False)
        self.down = torch.nn.Linear(ffn, hidden, bias=False)

    def forward(self, x):
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)


class Layer(moe_torch.Layer):
    """Plain torch's, but for what lies between norm and residual."""

    def __init__(self, rows, record):
        super().__init__(rows, record)
        local, hidden, ffn = record.tensors[self.names["down"]].shape
        self.moe = MoE(hidden, Expert(hidden, ffn), num_experts=local * partner.WORLD, ep_size=partner.WORLD, k=moe_torch.TOP_K, drop_tokens=False,
                       use_rts=False, top2_2nd_expert_sampling=False)
        self.moe.set_deepspeed_parallelism()
        with torch.no_grad():
            self.gate.weight.copy_(self.router)
            for expert, (down, gate_up) in zip(self.local_experts, self.weights):
                expert.gate_up.weight.copy_(gate_up)
                expert.down.weight.copy_(down)
        self.router = self.gate.weight
        self.weights = [(expert.down.weight, expert.gate_up.weight) for expert in self.local_experts]

    @property
    def gate(self):
        return self.moe.deepspeed_moe.gate.wg

    @property
    def local_experts(self):
        return self.moe.deepspeed_moe.experts.deepspeed_experts

    def forward(self):
        normed = F.rms_norm(self.x, (self.x.shape[1],), self.norm, moe_torch.EPSILON)
        return self.x + self.moe(normed)[0]


if __name__ == "__main__":
    logging.disable(logging.INFO)
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    partner.serve(Layer)
