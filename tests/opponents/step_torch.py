"""Training steps of a dense Llama by torch itself on two ranks (see partner.py and dense_model.py).
Usage: step_torch.py tp | tp-sp | fsdp-2 | fsdp-3 | zero-1 | cp | products

    tp, tp-sp       DTensor: parallelize_module, without and with sequence parallelism, loss_parallel
    zero-1          DistributedDataParallel and ZeroRedundancyOptimizer
    fsdp-2, fsdp-3  fully_shard; gathered weights stay until the backward, or not
    cp              sequences in zig-zag halves, keys and values gathered before attention by hand (torch's context_parallel has no
                    kernel for CPUs: aten._scaled_dot_product_flash_attention_for_cpu has no sharding strategy)
    products        no training: the matrix products of a rank's half of a step alone"""
import contextlib
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel, loss_parallel, parallelize_module

import dense_model
import partner

FORM = sys.argv[1]


def tensor_parallel(model, mesh, sequence):
    """Megatron's split by torch's own plan; `sequence`: what lies between the split products is split over tokens."""
    between = Shard(1) if sequence else Replicate()
    row = dict(output_layouts=between)
    parallelize_module(model, mesh, {
        "embed_tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=between, use_local_output=True),
        "lm_head": ColwiseParallel(input_layouts=between, output_layouts=Shard(-1), use_local_output=False),
        **({"norm": SequenceParallel()} if sequence else {})})
    for layer in model.layers:
        plan = {"self_attn.o_proj": RowwiseParallel(**row), "mlp.down_proj": RowwiseParallel(**row)}
        plan.update({name: ColwiseParallel() for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj")})
        if sequence:
            plan.update({"input_layernorm": SequenceParallel(), "post_attention_layernorm": SequenceParallel(),
                         "self_attn": PrepareModuleInput(input_layouts=(Shard(1), None, None), desired_input_layouts=(Replicate(), None, None)),
                         "mlp": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))})
        parallelize_module(layer, mesh, plan)


class Gathered(torch.autograd.Function):
    """[batch, heads, tokens of this rank, head] -> of all ranks, in the order of the ranks."""

    @staticmethod
    def forward(_, mine):
        parts = [torch.empty_like(mine, memory_format=torch.contiguous_format) for _ in range(partner.WORLD)]
        dist.all_gather(parts, mine.contiguous())
        return torch.cat(parts, dim=2)

    @staticmethod
    def backward(_, gradient):
        parts = [part.contiguous() for part in gradient.chunk(partner.WORLD, dim=2)]
        mine = torch.empty_like(parts[0])
        dist.reduce_scatter(mine, parts)
        return mine


def zigzag(length):
    """By rank: the positions of its first and of its last block, so that all have as much to attend to."""
    blocks = torch.arange(length).chunk(2 * partner.WORLD)
    return [torch.cat([blocks[rank], blocks[2 * partner.WORLD - 1 - rank]]) for rank in range(partner.WORLD)]


def share_sequences(model, length):
    """Attention of this rank's positions over all of them; returns those positions."""
    of_rank = zigzag(length)
    mine = of_rank[partner.RANK]
    seen = torch.cat(of_rank)[None, :] <= mine[:, None]

    def attend(q, k, v):
        return torch.nn.functional.scaled_dot_product_attention(q, Gathered.apply(k), Gathered.apply(v), attn_mask=seen)

    for layer in model.layers:
        layer.self_attn.attend = attend
    return mine


class Training:
    def __init__(self, length, folder):
        self.model = folder.model()
        self.mesh = init_device_mesh("cpu", (partner.WORLD,))
        windows = folder.windows if FORM in ("tp", "tp-sp") else folder.my_windows()
        self.inputs, self.targets = windows[:, :-1].contiguous(), windows[:, 1:].contiguous()
        self.around = contextlib.nullcontext
        self.angles = self.model.angles(0, length)
        self.forward = self.model
        if FORM in ("tp", "tp-sp"):
            tensor_parallel(self.model, self.mesh, FORM == "tp-sp")
            self.around = loss_parallel
        elif FORM in ("fsdp-2", "fsdp-3"):
            for layer in self.model.layers:
                fully_shard(layer, mesh=self.mesh, reshard_after_forward=FORM == "fsdp-3")
            fully_shard(self.model, mesh=self.mesh, reshard_after_forward=False)
        elif FORM == "cp":
            mine = share_sequences(self.model, length)
            self.inputs, self.targets = (part[:, mine] for part in (folder.windows[:, :-1], folder.windows[:, 1:]))
            self.angles = [angle[mine] for angle in self.angles]
        elif FORM == "zero-1":
            self.forward = torch.nn.parallel.DistributedDataParallel(self.model, gradient_as_bucket_view=True)
        groups = dense_model.groups_of(self.model.parameters())
        if FORM == "zero-1":
            self.optimizer = ZeroRedundancyOptimizer(groups[0]["params"], torch.optim.AdamW, fused=True, **dense_model.OPTIMIZER)
            for group in groups[1:]:
                self.optimizer.add_param_group(group)
        else:
            self.optimizer = torch.optim.AdamW(groups, fused=True, **dense_model.OPTIMIZER)

    def loss(self):
        with self.around():
            loss = dense_model.loss_of(self.forward(self.inputs, *self.angles), self.targets)
            loss.backward()
        if FORM == "cp":
            gradients = torch.cat([parameter.grad.flatten() for parameter in self.model.parameters()])
            dist.all_reduce(gradients)
            at = 0
            for parameter in self.model.parameters():
                parameter.grad.copy_(gradients[at:at + parameter.numel()].view_as(parameter.grad)).div_(partner.WORLD)
                at += parameter.numel()
        return loss

    def step(self):
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss()
        self.optimizer.step()
        return loss.detach()

    def gradient_norm(self):
        squares = 0.0
        for parameter in self.model.parameters():
            gradient = parameter.grad
            gradient = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient
            squares += float(gradient.double().square().sum())
        return squares**0.5

    def results(self):
        losses, norm = [], None
        for _ in range(dense_model.CHECKED_STEPS):
            loss = self.step()
            norm = norm or self.gradient_norm()
            loss = (loss.full_tensor() if hasattr(loss, "full_tensor") else loss).clone()
            if FORM not in ("tp", "tp-sp"):
                dist.all_reduce(loss)
                loss /= partner.WORLD
            losses.append(float(loss))
        return {"losses": losses, "norm": norm}, 0.0


class Products:
    """Forward, and twice as much backward, of each weight, not of attention's scores; of half of the batch's tokens."""

    def __init__(self, length, folder):
        tokens = folder.my_windows().shape[0] * length
        weights = [p for p in folder.model().parameters() if p.dim() == 2][1:]
        self.products = [(torch.randn(tokens, w.shape[1]), torch.randn(tokens, w.shape[0]), w.detach()) for w in weights]
        self.found = {"losses": folder.losses, "norm": folder.norm}

    def step(self):
        for x, gradient, weight in self.products:
            x @ weight.T, gradient @ weight, gradient.T @ x

    def results(self):
        return self.found, 0.0


if __name__ == "__main__":
    partner.serve(Products if FORM == "products" else Training, dense_model.Folder)
