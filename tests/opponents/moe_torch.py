"""A mixture layer over ranks in plain torch: x + experts(norm(x)), tokens exchanged by all_to_all_single over gloo.
Usage: moe_torch.py fused|separate|compiled|posted TOP_K [TP [whole|parts]] (see partner.py).

Written to be fast: rows are sorted once, an expert's rows from all ranks are one product, every weight is a leaf of its own (autograd
then keeps its gradient as it comes). `fused`: gate and up are one product; `separate`: two; `compiled`: one, and torch.compile
fuses what lies between the exchanges; `posted`: one, and tokens are exchanged by isend and irecv, the receives first. (gloo's exchange
sends first: the word that the later of two ranks is ready to receive waits behind what it sends, and the two directions of a slow
network take turns.)

With TP, so many neighbouring ranks hold the same tokens and a part of the width of the same experts each; the groups of ranks with the
same part exchange tokens. `whole`: each rank routes and exchanges all its tokens, and what it merges is summed over the tp group: one
all-reduce of [T, D] in each pass, not of the experts' rows, of which there are TOP_K times as many. `parts`: each rank routes its part
of the tokens, sends a row to every rank that has a part of its expert and adds up what comes back from these; outputs are gathered."""
import functools
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F

import partner

EPSILON = 1e-6  # of Piper's norm
FORM, TOP_K = sys.argv[1], int(sys.argv[2])
TP = int(sys.argv[3]) if len(sys.argv) > 3 else 1
DIVIDES_TOKENS = sys.argv[4:] == ["parts"]
EP, TP_RANK = partner.WORLD // TP, partner.RANK % TP


def exchange(out, rows, received, sent, group):
    """Sizes are in rows, by the rank in the group."""
    if FORM != "posted":
        dist.all_to_all_single(out, rows, received, sent, group)
        return
    own, arriving, leaving = dist.get_rank(group), out.split(received), rows.split(sent)
    arriving[own].copy_(leaving[own])
    others = [r for r in range(len(sent)) if r != own]
    waited = [dist.irecv(arriving[r], group=group, group_src=r) for r in others if received[r]]
    waited += [dist.isend(leaving[r], group=group, group_dst=r) for r in others if sent[r]]
    for one in waited:
        one.wait()


class Exchange(torch.autograd.Function):
    """Rows to and from every rank of a group."""

    @staticmethod
    def forward(context, rows, sent, received, group):
        context.sizes, context.group = (sent, received), group
        out = rows.new_empty(sum(received), rows.shape[1])
        exchange(out, rows.contiguous(), received, sent, group)
        return out

    @staticmethod
    def backward(context, gradient):
        sent, received = context.sizes
        out = gradient.new_empty(sum(sent), gradient.shape[1])
        exchange(out, gradient.contiguous(), sent, received, context.group)
        return out, None, None, None


class SumBehind(torch.autograd.Function):
    """The sum of the ranks' parts; its gradient is every part's."""

    @staticmethod
    def forward(context, part, group):
        context.mark_dirty(part)
        dist.all_reduce(part, group=group)
        return part

    @staticmethod
    def backward(context, gradient):
        return gradient, None


class SumBefore(torch.autograd.Function):
    """What every rank has; each has a part of its gradient."""

    @staticmethod
    def forward(context, x, group):
        context.group = group
        return x.view_as(x)

    @staticmethod
    def backward(context, gradient):
        dist.all_reduce(gradient, group=context.group)
        return gradient, None


def own_part(x):
    return x.chunk(TP)[TP_RANK]


def gathered(part, group):
    whole = part.new_empty(TP * part.shape[0], part.shape[1])
    dist.all_gather_into_tensor(whole, part.contiguous(), group=group)
    return whole


class OwnPart(torch.autograd.Function):
    """A rank's part of the tokens that all have."""

    @staticmethod
    def forward(context, x, group):
        context.group = group
        return own_part(x)

    @staticmethod
    def backward(context, gradient):
        return gathered(gradient, context.group), None


class Gathered(torch.autograd.Function):
    """All tokens, of which each rank has a part."""

    @staticmethod
    def forward(context, part, group):
        return gathered(part, group)

    @staticmethod
    def backward(context, gradient):
        return own_part(gradient), None


@functools.cache
def groups():
    """Of the ranks that hold the same tokens, and of those that exchange rows."""
    every = range(partner.WORLD)
    tensor = [dist.new_group(list(every[i:i + TP])) for i in every[::TP]]
    expert = [dist.new_group(list(every[i::TP])) for i in range(TP)]
    return tensor[partner.RANK // TP], expert[TP_RANK]


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
def weighed(returned, place, weights):
    return (returned[place] * weights.unsqueeze(-1)).sum(1)


@maybe_compiled
def merge(x, returned, place, weights):
    return x + (returned[place] * weights.unsqueeze(-1)).sum(1)


def leaf(tensor):
    return tensor.clone().requires_grad_()


class Layer:
    replicas = None  # over whom gradients of norm and router are summed: all ranks

    def __init__(self, rows, record):
        self.names = {key: next(n for n in record.tensors if n.endswith(ending)) for key, ending in
                      (("norm", "post_attention_layernorm.weight"), ("router", "mlp.gate.weight"), ("gate_up", "gate_up_proj"), ("down", "down_proj"))}
        self.norm, self.router = (leaf(record.tensors[self.names[key]]) for key in ("norm", "router"))
        self.weights = [(leaf(down), *map(leaf, gate_up.chunk(2) if FORM == "separate" else (gate_up,)))
                        for down, gate_up in zip(record.tensors[self.names["down"]], record.tensors[self.names["gate_up"]])]
        self.x, self.gradient = leaf(record.tensors["x"]), record.tensors["target"]
        assert self.x.shape[0] == rows
        if TP > 1:
            self.tensor_group, self.expert_group = groups()

    def exchange_counts(self, counts, group, ranks):
        received = torch.empty_like(counts)
        dist.all_to_all_single(received, counts, group=group)
        return counts.view(ranks, -1).sum(1).tolist(), received.view(ranks, -1)

    def experts(self, rows, received):
        """An expert's rows lie in as many pieces as there are ranks; they go back in the same order."""
        sizes = received.tolist()  # by rank, then local expert
        pieces = rows.split([n for of_rank in sizes for n in of_rank])
        outs = []
        for e, weights in enumerate(self.weights):
            of_expert = pieces[e::len(self.weights)]
            out = expert(of_expert[0] if len(of_expert) == 1 else torch.cat(of_expert), *weights)
            outs.append(out.split([of_rank[e] for of_rank in sizes]))
        return torch.cat([of_expert[r] for r in range(len(sizes)) for of_expert in outs])

    def through_experts(self, rows, counts, group, ranks):
        if ranks == 1:
            return self.experts(rows, counts.view(1, -1))
        sent, received = self.exchange_counts(counts, group, ranks)
        sizes = received.sum(1).tolist()
        arrived = Exchange.apply(rows, sent, sizes, group)
        return Exchange.apply(self.experts(arrived, received), sizes, sent, group)

    def forward(self):
        if TP > 1:
            return self.forward_of_parts() if DIVIDES_TOKENS else self.forward_of_whole()
        rows, place, weights, counts = route(self.x, self.norm, self.router)
        return merge(self.x, self.through_experts(rows, counts, None, partner.WORLD), place, weights)

    def forward_of_whole(self):
        x = SumBefore.apply(self.x, self.tensor_group)
        rows, place, weights, counts = route(x, self.norm, self.router)
        returned = self.through_experts(rows, counts, self.expert_group, EP)
        # The residual is one rank's.
        part = merge(x, returned, place, weights) if TP_RANK == 0 else weighed(returned, place, weights)
        return SumBehind.apply(part, self.tensor_group)

    def forward_of_parts(self):
        x = OwnPart.apply(self.x, self.tensor_group)
        rows, place, weights, counts = route(x, self.norm, self.router)
        counts = counts.view(EP, -1)
        blocks = counts.sum(1).tolist()  # of the ranks that share the same experts
        to_all = torch.cat([block for block in rows.split(blocks) for _ in range(TP)])
        parts = self.through_experts(to_all, counts.repeat_interleave(TP, dim=0).flatten(), None, partner.WORLD)
        summed = [block.view(TP, size, -1).sum(0) for size, block in zip(blocks, parts.split([TP * size for size in blocks]))]
        return Gathered.apply(merge(x, torch.cat(summed), place, weights), self.tensor_group)

    def reduce_dense(self):
        """As on Piper's side: the gradients of what every rank has are summed; with TP each has those of its part."""
        gradients = [self.norm.grad, self.router.grad]
        flat = torch.cat([g.flatten() for g in gradients])
        dist.all_reduce(flat, group=self.replicas)
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
