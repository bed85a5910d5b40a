"""The pipeline of linear layers by DeepSpeed's PipelineModule and PipelineEngine, on its CPU accelerator (see partner.py)."""
import itertools
import logging
import os

import partner  # first: from here on, what libraries print does not go where answers do

os.environ.setdefault("DS_ACCELERATOR", "cpu")
import deepspeed
import torch
from deepspeed.pipe import LayerSpec, PipelineModule

from pipeline_torch import LEARNING_RATE

NUM_LAYERS = int(os.environ.get("LINEAR_LAYERS", "8"))


class Descent(torch.optim.SGD):
    """Keeps the gradients of a step when asked."""
    kept = None

    def step(self, closure=None):
        if self.kept is not None:
            self.kept.update({p: p.grad.clone() for group in self.param_groups for p in group["params"]})
        return super().step(closure)


class Pipeline:
    def __init__(self, rows, record):
        weights = {int(n.split(".")[1]): t for n, t in record.tensors.items() if n.startswith("linear.") and not n.endswith(".gradient")}
        hidden = next(iter(weights.values())).shape[0]
        module = PipelineModule([LayerSpec(torch.nn.Linear, hidden, hidden, bias=False) for _ in range(NUM_LAYERS)], num_stages=partner.WORLD,
                                loss_fn=torch.nn.functional.mse_loss, partition_method="uniform", activation_checkpoint_interval=0)
        self.parameters = {int(name.split(".")[0]): parameter for name, parameter in module.named_parameters()}
        assert self.parameters.keys() == weights.keys(), (self.parameters.keys(), weights.keys())
        with torch.no_grad():
            for index, parameter in self.parameters.items():
                parameter.copy_(weights[index])
        x, target = record.tensors.get("x"), record.tensors.get("target")
        x, target = (t if t is not None else torch.empty_like(x if target is None else target) for t in (x, target))
        batches = list(zip(x.split(rows), target.split(rows)))
        self.optimizer = Descent(module.parameters(), lr=LEARNING_RATE)
        config = {"train_micro_batch_size_per_gpu": rows, "gradient_accumulation_steps": len(batches), "steps_per_print": 10**9}
        self.engine = deepspeed.initialize(model=module, optimizer=self.optimizer, config=config)[0]
        self.batches = itertools.cycle(batches)

    def step(self):
        return self.engine.train_batch(self.batches)

    def results(self):
        self.optimizer.kept = kept = {}
        loss = float(self.step())
        self.optimizer.kept = None
        # The engine tells every stage the loss.
        return {f"linear.{index}.gradient": kept[p] for index, p in self.parameters.items()}, loss if partner.RANK == partner.WORLD - 1 else 0.0


if __name__ == "__main__":
    logging.disable(logging.INFO)
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    partner.serve(Pipeline)
