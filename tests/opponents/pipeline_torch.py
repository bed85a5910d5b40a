"""The pipeline of linear layers by torch.distributed.pipelining. Usage: pipeline_torch.py 1f1b|gpipe (see partner.py)."""
import inspect
import sys

import torch
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

import partner

SCHEDULES = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}
LEARNING_RATE = 0.1


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
        module = torch.nn.Sequential(*self.layers.values())
        stage = PipelineStage(module, partner.RANK, partner.WORLD, torch.device("cpu"))
        self.x, self.target = record.tensors.get("x"), record.tensors.get("target")
        num_micro_batches = next(t for t in (self.x, self.target) if t is not None).shape[0] // rows
        self.schedule = SCHEDULES[sys.argv[1]](stage, num_micro_batches, loss_fn=torch.nn.functional.mse_loss)
        # The outputs are wanted by nobody.
        self.flags = {"return_outputs": False} if "return_outputs" in inspect.signature(self.schedule.step).parameters else {}
        self.optimizer = torch.optim.SGD(module.parameters(), lr=LEARNING_RATE)

    def play(self, losses=None):
        self.optimizer.zero_grad()
        if partner.RANK == 0:
            self.schedule.step(self.x, **self.flags)
        else:
            self.schedule.step(target=self.target, losses=losses, **self.flags)

    def step(self):
        self.play()
        self.optimizer.step()

    def results(self):
        losses = []
        self.play(losses)
        loss = float(torch.stack(losses).mean()) if losses else 0.0
        return {f"{name}.gradient": layer.weight.grad for name, layer in self.layers.items()}, loss


if __name__ == "__main__":
    partner.serve(Pipeline)
