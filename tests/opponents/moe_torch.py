"""A mixture layer over ranks in plain torch: x + experts(norm(x)), tokens exchanged by all_to_all_single over gloo.
Usage: moe_torch.py fused|separate|compiled TOP_K (see partner.py).

Written to be fast: rows are sorted once, an expert's rows from all ranks are one product, every weight is a leaf of its own (autograd
then keeps its gradient as it comes). `fused`: gate and up are one product; `separate`: two; `compiled`: one, and torch.compile
fuses what lies between the exchanges."""
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F

import partner

EPSILON = 1e-6  # of Piper's norm
FORM, TOP_K = sys.argv[1], int(sys.argv[2])


class Exchange(torch.autograd.Function):
    """Rows to and from every rank."""

    @staticmethod
    def forward(context, rows, sent, received):
        context.sizes = sent, received
        out = rows.new_empty(sum(received), rows.shape[1])
        dist.all_to_all_single(out, rows.contiguous(), received, sent)
        return out

    @staticmethod
    def backward(context, gradient):
        sent, received = context.sizes
        out = gradient.new_empty(sum(sent), gradient.shape[1])
        dist.all_to_all_single(out, gradient.contiguous(), sent, received)
        return out, None, None


def maybe_compiled(function):
    return torch.compile(function) if FORM == "compiled" else function


@maybe_compiled
def route(x, norm, router):
    """Rows in the order of their experts, the place of each token's copies among them, their weights, rows by expert."""
    normed = F.rms_norm(x, (x.shape[1],), norm, EPSILON)
    weights, experts = torch.topk(F.softmax(F.linear(normed, router), dim=-1), TOP_K)
    weights = weights / weights.sum(-1, keepdim=True)
    order = torch.argsort(experts.flatten(), stable=True)
    place = torch.empty_like(order).scatter_(0, order, torch.arange(order.numel())).view(experts.shape)
    counts = torch.zeros(router.shape[0], dtype=torch.long).scatter_add_(0, experts.flatten(), torch.ones_like(order))
    return normed[order // TOP_K], place, weights, counts


@maybe_compiled
def expert(rows, down, *gate_up):
    gate, up = (F.linear(rows, w) for w in gate_up) if len(gate_up) == 2 else F.linear(rows, gate_up[0]).chunk(2, dim=-1)
    return F.linear(F.silu(gate) * up, down)


@maybe_compiled
def merge(x, returned, place, weights):
    return x + (returned[place] * weights.unsqueeze(-1)).sum(1)


def leaf(tensor):
    return tensor.clone().requires_grad_()


class Layer:
    def __init__(self, rows, record):
        self.names = {key: next(n for n in record.tensors if n.endswith(ending)) for key, ending in
                      (("norm", "post_attention_layernorm.weight"), ("router", "mlp.gate.weight"), ("gate_up", "gate_up_proj"), ("down", "down_proj"))}
        self.norm, self.router = (leaf(record.tensors[self.names[key]]) for key in ("norm", "router"))
        self.weights = [(leaf(down), *map(leaf, gate_up.chunk(2) if FORM == "separate" else (gate_up,)))
                        for down, gate_up in zip(record.tensors[self.names["down"]], record.tensors[self.names["gate_up"]])]
        self.x, self.gradient = leaf(record.tensors["x"]), record.tensors["target"]
        assert self.x.shape[0] == rows

    def exchange_counts(self, counts):
        received = torch.empty_like(counts)
        dist.all_to_all_single(received, counts)
        return counts.view(partner.WORLD, -1).sum(1).tolist(), received.view(partner.WORLD, -1)

    def experts(self, rows, received):
        """An expert's rows lie in as many pieces as there are ranks; they go back in the same order."""
        sizes = received.tolist()  # by rank, then local expert
        pieces = rows.split([n for of_rank in sizes for n in of_rank])
        outs = []
        for e, weights in enumerate(self.weights):
            out = expert(torch.cat(pieces[e::len(self.weights)]), *weights)
            outs.append(out.split([of_rank[e] for of_rank in sizes]))
        return torch.cat([of_expert[r] for r in range(partner.WORLD) for of_expert in outs])

    def forward(self):
        rows, place, weights, counts = route(self.x, self.norm, self.router)
        sent, received = self.exchange_counts(counts)
        sizes = received.sum(1).tolist()
        arrived = Exchange.apply(rows, sent, sizes)
        returned = Exchange.apply(self.experts(arrived, received), sizes, sent)
        return merge(self.x, returned, place, weights)

    def reduce_dense(self):
        """As on Piper's side: the gradients of what every rank has are summed."""
        gradients = [self.norm.grad, self.router.grad]
        flat = torch.cat([g.flatten() for g in gradients])
        dist.all_reduce(flat)
        for gradient, part in zip(gradients, flat.split([g.numel() for g in gradients])):
            gradient.copy_(part.view_as(gradient))

    def step(self):
        for tensor in (self.x, self.norm, self.router, *(w for weights in self.weights for w in weights)):
            tensor.grad = None
        y = self.forward()
        y.backward(self.gradient)
        self.reduce_dense()
        return y

    def results(self):
        y = self.step().detach()
        found = {"norm": self.norm.grad, "router": self.router.grad,
                 "down": torch.stack([weights[0].grad for weights in self.weights]),
                 "gate_up": torch.stack([torch.cat([w.grad for w in weights[1:]]) for weights in self.weights])}
        return {**{f"{self.names[key]}.gradient": value for key, value in found.items()}, "y": y, "x.gradient": self.x.grad}, 0.0


if __name__ == "__main__":
    partner.serve(Layer)
