"""x + MoE(norm(x)) by DeepSpeed's mixture layer, top 2, no token dropped, experts over the ranks (see partner.py; arguments as moe_torch.py).

DeepSpeed pads every expert to the rows of the fullest one; gate and up of an expert are one product, as on the other sides. With TP its
experts are tensor-parallel (enable_expert_tensor_parallelism): an expert sums its output over the tp group, as Megatron's does, and the
layer drops tokens over that group before an exchange and gathers them behind it. These are parts of an expert's rows, whose number must
be a multiple of TP; DeepSpeed does not see to that where nothing is to be dropped, so the capacity is given: the fullest expert's rows.
`posted`: its exchanges receive before they send, as moe_torch.py says."""
import logging
import os

import partner  # first: from here on, what libraries print does not go where answers do

os.environ.setdefault("DS_ACCELERATOR", "cpu")
import deepspeed
import torch
import torch.distributed as dist
import torch.nn.functional as F
from deepspeed.moe.layer import MoE

import moe_torch
from moe_torch import EP, TP


class TensorParallelism:
    """What DeepSpeed asks of an mpu."""

    @staticmethod
    def get_tensor_model_parallel_rank():
        return moe_torch.TP_RANK

    @staticmethod
    def get_tensor_model_parallel_world_size():
        return TP

    @staticmethod
    def get_tensor_model_parallel_group():
        return moe_torch.groups()[0]

    @staticmethod
    def get_data_parallel_world_size():
        return EP

    @staticmethod
    def get_data_parallel_group():
        return moe_torch.groups()[1]


def let_gloo_gather():
    """DeepSpeed gathers a tensor into a flat buffer; gloo takes a flat buffer from a flat tensor alone."""
    gather = deepspeed.comm.all_gather_into_tensor
    deepspeed.comm.all_gather_into_tensor = lambda buffer, tensor, **more: gather(buffer, tensor.flatten(), **more)


def post_receives_first():
    def exchange(out, rows, group=None, **_):
        sizes = [rows.shape[0] // dist.get_world_size(group)] * dist.get_world_size(group)
        moe_torch.exchange(out, rows, sizes, sizes, group)

    deepspeed.comm.all_to_all_single = exchange


class Expert(torch.nn.Module):
    def __init__(self, hidden, ffn):
        super().__init__()
        self.gate_up = torch.nn.Linear(hidden, 2 * ffn, bias=False)
        self.down = torch.nn.Linear(ffn, hidden, bias=False)

    def forward(self, x):
        if TP > 1:
            x = moe_torch.SumBefore.apply(x, moe_torch.groups()[0])
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        out = self.down(F.silu(gate) * up)
        return moe_torch.SumBehind.apply(out, moe_torch.groups()[0]) if TP > 1 else out


class Layer(moe_torch.Layer):
    """Plain torch's, but for what lies between norm and residual."""

    def __init__(self, rows, record):
        super().__init__(rows, record)
        local, hidden, ffn = record.tensors[self.names["down"]].shape
        capacity = {"drop_tokens": False}
        if TP > 1:
            if EP > 1:  # each has whole gradients of norm and router
                self.replicas = self.expert_group
            else:
                self.reduce_dense = lambda: None
            deepspeed.utils.groups.mpu = TensorParallelism
            capacity = {"drop_tokens": True, "capacity_factor": self.capacity_factor(rows), "enable_expert_tensor_parallelism": True}
        self.moe = MoE(hidden, Expert(hidden, ffn), num_experts=local * EP, ep_size=EP, k=moe_torch.TOP_K, use_rts=False,
                       top2_2nd_expert_sampling=False, **capacity)
        self.moe.set_deepspeed_parallelism()
        with torch.no_grad():
            self.gate.weight.copy_(self.router)
            for expert, (down, gate_up) in zip(self.local_experts, self.weights):
                expert.gate_up.weight.copy_(gate_up)
                expert.down.weight.copy_(down)
        self.router = self.gate.weight
        self.weights = [(expert.down.weight, expert.gate_up.weight) for expert in self.local_experts]

    def capacity_factor(self, rows):
        """With which an expert takes as many rows as the fullest of any rank has, and no more than that takes to divide them by TP."""
        counts = moe_torch.route(self.x, self.norm, self.router)[3]
        fullest = counts.max()
        dist.all_reduce(fullest, op=dist.ReduceOp.MAX)
        capacity = -(-int(fullest) // TP) * TP
        return (capacity - 0.5) * counts.numel() / (moe_torch.TOP_K * rows)  # rounded up by DeepSpeed

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
    let_gloo_gather()
    if moe_torch.FORM == "posted":
        post_receives_first()
    partner.serve(Layer)
