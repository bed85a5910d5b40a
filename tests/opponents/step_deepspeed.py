"""Training steps of a dense Llama by DeepSpeed's ZeRO on its CPU accelerator (see partner.py and dense_model.py).
Usage: step_deepspeed.py 1 | 2 | 3 [offload]"""
import logging
import os
import sys

import partner  # first: from here on, what libraries print does not go where answers do

os.environ.setdefault("DS_ACCELERATOR", "cpu")
import deepspeed
import torch
import torch.distributed as dist

import dense_model

STAGE, OFFLOAD = int(sys.argv[1]), sys.argv[2:] == ["offload"]


class Training:
    def __init__(self, length, folder):
        model = folder.model()
        self.angles, self.windows = model.angles(0, length), folder.my_windows()
        config = {"train_micro_batch_size_per_gpu": len(self.windows), "gradient_accumulation_steps": 1, "steps_per_print": 10**9,
                  "gradient_clipping": 0.0,  # 1.0 where it is not said, which AdamW shows by its epsilon alone
                  "zero_allow_untested_optimizer": True,
                  "zero_optimization": {"stage": STAGE, "overlap_comm": False,
                                        **({"offload_optimizer": {"device": "cpu"}} if OFFLOAD else {})}}
        groups = dense_model.groups_of(model.parameters())
        decays = [group["weight_decay"] for group in groups]
        for group in groups:
            group["weight_decay"] = 0.0
        if OFFLOAD:
            from deepspeed.ops.adam import DeepSpeedCPUAdam
            optimizer = DeepSpeedCPUAdam(groups, adamw_mode=True, **dense_model.OPTIMIZER)
        else:
            optimizer = torch.optim.AdamW(groups, fused=True, **dense_model.OPTIMIZER)
        self.engine = deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]
        # It has taken a step without gradients to make the states: that one decays nothing, and does not count.
        for group, decay in zip(optimizer.param_groups, decays, strict=True):
            group["weight_decay"] = decay
        for state in optimizer.state.values():
            state["step"] = torch.zeros_like(state["step"]) if isinstance(state["step"], torch.Tensor) else 0

    def step(self):
        inputs, targets = self.windows[:, :-1], self.windows[:, 1:]
        loss = dense_model.loss_of(self.engine(inputs, *self.angles), targets)
        self.engine.backward(loss)
        self.engine.step()
        return loss.detach()

    def results(self):
        losses, norm = [], None
        for _ in range(dense_model.CHECKED_STEPS):
            loss = self.step().clone()
            norm = norm or float(self.engine.get_global_grad_norm())
            dist.all_reduce(loss)
            losses.append(float(loss) / partner.WORLD)
        return {"losses": losses, "norm": norm}, 0.0


if __name__ == "__main__":
    logging.disable(logging.INFO)
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    partner.serve(Training, dense_model.Folder)
