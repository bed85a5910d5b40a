"""The pipeline of linear layers by torch.distributed.pipelining. Usage: pipeline_torch.py SCHEDULE, a key of SCHEDULES (see partner.py)."""
import inspect
import sys

import torch
from torch.distributed import pipelining
from torch.distributed.pipelining import PipelineStage, schedules

import partner

# By Piper's names: the class, and whether two stages of a rank lie as a V (None: one stage a rank).
SCHEDULES = {"1f1b": ("Schedule1F1B", None), "gpipe": ("ScheduleGPipe", None), "interleaved": ("ScheduleInterleaved1F1B", False),
             "zb-v": ("ScheduleZBVZeroBubble", True), "dualpipev": ("ScheduleDualPipeV", True)}
LEARNING_RATE = 0.1
MICRO_BATCHES = 8  # where a rank has neither end of the model


def linear_layers(record):
    """Those of this rank, with Piper's weights."""
    names = sorted((n for n in record.tensors if n.startswith("linear.") and not n.endswith(".gradient")), key=lambda n: int(n.split(".")[1]))
    layers = {}
    for name in names:
        weight = record.tensors[name]
        layers[name] = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        with torch.no_grad():
            layers[name].weight.copy_(weight)
    return layers


class Pipeline:
    def __init__(self, rows, record):
        self.layers = linear_layers(record)
        name, is_v = SCHEDULES[sys.argv[1]]
        schedule = getattr(schedules, name, None) or getattr(pipelining, name)
        indices = [partner.RANK] if is_v is None else [partner.RANK, 2 * partner.WORLD - 1 - partner.RANK if is_v else partner.RANK + partner.WORLD]
        layers, per_stage = list(self.layers.values()), len(self.layers) // len(indices)
        modules = [torch.nn.Sequential(*layers[i * per_stage:(i + 1) * per_stage]) for i in range(len(indices))]
        stages = [PipelineStage(module, index, len(indices) * partner.WORLD, torch.device("cpu")) for module, index in zip(modules, indices)]
        self.x, self.target = record.tensors.get("x"), record.tensors.get("target")
        num_micro_batches = MICRO_BATCHES if self.x is None and self.target is None else next(
            t for t in (self.x, self.target) if t is not None).shape[0] // rows
        self.schedule = schedule(stages[0] if is_v is None else stages, num_micro_batches, loss_fn=torch.nn.functional.mse_loss)
        # The outputs are wanted by nobody.
        self.flags = {"return_outputs": False} if "return_outputs" in inspect.signature(self.schedule.step).parameters else {}
        self.optimizer = torch.optim.SGD([p for module in modules for p in module.parameters()], lr=LEARNING_RATE)

    def execute(self, losses=None):
        self.optimizer.zero_grad()
        inputs = () if self.x is None else (self.x,)
        end = {} if self.target is None else {"target": self.target, "losses": losses}
        self.schedule.step(*inputs, **end, **self.flags)

    def step(self):
        self.execute()
        self.optimizer.step()

    def results(self):
        losses = []
        self.execute(losses)
        loss = float(torch.stack(losses).mean()) if losses else 0.0
        return {f"{name}.gradient": layer.weight.grad for name, layer in self.layers.items()}, loss


if __name__ == "__main__":
    partner.serve(Pipeline)
