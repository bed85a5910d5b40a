#!/usr/bin/env python3
"""What it does to a loss that experts travel as residuals, by plain torch: a small Mixtral of transformers on one process, whose experts compute with
what others would have been told of them, while the optimizer updates them as they are. Of every block of 256 elements as many are sent as --kept says
(3 in bf16: one part in 57, places included). Forms: `whole` (all are sent), `told` (farthest from what was last told: Piper's expert_compression),
`shared` (farthest from the mean of all experts, which is told whole: HybridEP's SR compression), `largest` (the largest; the others are 0).

usage: expert_residuals.py TEXT [--forms whole told shared largest] [--kept 3] [--steps 300] [--learning-rate 1e-3] [--seed 0]
prints means of 20 losses. Needs transformers."""
import argparse
import math
import pathlib

import torch
from transformers import MixtralConfig, MixtralForCausalLM

BLOCK, SEQUENCES, SEQUENCE, WARM_UP, MEAN_OF = 256, 16, 128, 20, 20


def with_farthest(now, base, kept):
    """`base`, but for the elements of `now` that are farthest from it."""
    place = (now - base).reshape(-1, BLOCK).abs().topk(kept, 1).indices
    told = base.expand_as(now).reshape(-1, BLOCK).clone()
    return told.scatter_(1, place, now.reshape(-1, BLOCK).gather(1, place)).view_as(now)


def base_of(form, now, told):
    return {"told": lambda: told, "shared": lambda: now.mean(0, keepdim=True).expand_as(now).contiguous(), "largest": lambda: torch.zeros_like(now)}[form]()


def losses(form, text, options):
    torch.manual_seed(options.seed)
    config = MixtralConfig(hidden_size=128, intermediate_size=256, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, vocab_size=256,
                           num_local_experts=8, num_experts_per_tok=2, max_position_embeddings=256, router_aux_loss_coef=0.0)
    config._experts_implementation = "grouped_mm"
    model = MixtralForCausalLM(config).train()
    experts = [parameter for name, parameter in model.named_parameters() if "experts" in name]
    assert experts
    exact, told = [p.data.clone() for p in experts], [p.data.clone() for p in experts]
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate, betas=(0.9, 0.95), weight_decay=0.1)
    rate = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1, (step + 1) / WARM_UP) * (0.1 + 0.45 * (1 + math.cos(math.pi * step / options.steps))))
    generator = torch.Generator().manual_seed(options.seed + 1)
    found = []
    for _ in range(options.steps):
        starts = torch.randint(0, len(text) - SEQUENCE - 1, (SEQUENCES,), generator=generator)
        batch = torch.stack([text[start:start + SEQUENCE + 1] for start in starts])
        for parameter, known in zip(experts, told):
            parameter.data.copy_(known)
        logits = model(input_ids=batch[:, :-1], use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for parameter, now in zip(experts, exact):
            parameter.data.copy_(now)
        optimizer.step()
        rate.step()
        for i, parameter in enumerate(experts):
            exact[i].copy_(parameter.data)
            told[i] = exact[i].clone() if form == "whole" else with_farthest(exact[i], base_of(form, exact[i], told[i]), options.kept)
        found.append(loss.item())
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=pathlib.Path)
    parser.add_argument("--forms", nargs="+", default=["whole", "told", "shared", "largest"])
    parser.add_argument("--kept", type=int, default=3)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    text = torch.tensor(list(options.text.read_bytes()))
    at = [options.steps * i // 6 for i in range(1, 7)]
    print(f"{'steps':>8} " + " ".join(f"{n:>7}" for n in at))
    for form in options.forms:
        found = losses(form, text, options)
        print(f"{form:>8} " + " ".join(f"{sum(found[max(0, n - MEAN_OF):n]) / min(n, MEAN_OF):7.3f}" for n in at), flush=True)


if __name__ == "__main__":
    main()
