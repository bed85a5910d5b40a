#!/usr/bin/env python3
"""The groups of every axis are those of Megatron-LM's RankGenerator (megatron-core), over 1,000 random meshes.

Megatron-LM has one generator for attention (tp, cp, dp, pp) and one for experts (etp, ep, edp, pp). With pipelines inside it asks
that both place pipelines alike, which is so where tp x cp = ep x etp. Its source is read from the wheel, and nothing else of it runs.
"""
import ast
import json
import os
import pathlib
import random
import subprocess
import sys
import zipfile
from typing import List

from switches import skip

ROOT = pathlib.Path(__file__).resolve().parent.parent
COUNT, MOST_RANKS, SEED = 1000, 768, 20261123
ORDERS = ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp")  # by placement


def rank_generator():
    wheels = sorted((ROOT / ".venv/oracles").glob("megatron_core-*.whl"))
    if not wheels:
        skip("no wheel of megatron-core in .venv/oracles; scripts/setup --tests fetches it")
    text = zipfile.ZipFile(wheels[-1]).read("megatron/core/parallel_state.py").decode()
    wanted = ("RankGenerator", "generate_masked_orthogonal_rank_groups")
    found = [node for node in ast.parse(text).body if getattr(node, "name", "") in wanted]
    assert len(found) == len(wanted), "megatron-core has another RankGenerator"
    names = {"List": List}
    exec(compile(ast.Module(found, []), "parallel_state.py", "exec"), names)
    return names["RankGenerator"]


def draw(chance):
    """pp, tp, cp, dp, ep, etp, placement: the experts' mesh cuts the same ranks of a stage."""
    while True:
        pp, tp, cp, dp = (chance.choice(sizes) for sizes in ((1, 2, 3, 4, 8), (1, 2, 3, 4, 8), (1, 2, 3, 4), (1, 2, 3, 4, 6, 8, 16)))
        stage = tp * cp * dp
        if pp * stage > MOST_RANKS:
            continue
        pairs = [(ep, etp) for ep in range(1, stage + 1) for etp in range(1, stage // ep + 1) if stage % (ep * etp) == 0]
        placement = chance.randrange(2)
        if placement == 1:
            pairs = [pair for pair in pairs if pair[0] * pair[1] == tp * cp]
        ep, etp = chance.choice(pairs)
        return pp, tp, cp, dp, ep, etp, placement


def expected(generator, mesh):
    pp, tp, cp, dp, ep, etp, placement = mesh
    attention = generator(tp=tp, ep=1, dp=dp, pp=pp, cp=cp, order=ORDERS[placement])
    experts = generator(tp=etp, ep=ep, dp=tp * cp * dp // (ep * etp), pp=pp, cp=1, order=ORDERS[placement])
    groups = {"tensor": attention.get_ranks("tp"), "context": attention.get_ranks("cp"), "data": attention.get_ranks("dp-cp"),
              "expert tensor": experts.get_ranks("tp"), "expert": experts.get_ranks("ep"), "expert data": experts.get_ranks("dp"),
              "pipeline": attention.get_ranks("pp")}
    assert sorted(groups["pipeline"]) == sorted(experts.get_ranks("pp")), mesh
    return {axis: sorted(sorted(group) for group in all_groups) for axis, all_groups in groups.items()}


def main():
    generator, chance = rank_generator(), random.Random(SEED)
    meshes = [draw(chance) for _ in range(COUNT)]
    lines = "\n".join(" ".join(map(str, mesh)) for mesh in meshes)
    said = subprocess.run([os.environ["RANK_GROUPS_PROBE"]], input=lines, capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(said) == COUNT, len(said)
    for mesh, line in zip(meshes, said):
        found, wanted = json.loads(line), expected(generator, mesh)
        for axis in wanted:
            assert found[axis] == wanted[axis], f"pp tp cp dp ep etp placement {mesh}: {axis}: {found[axis]}, megatron-core has {wanted[axis]}"
    both = sum(mesh[2] > 1 and mesh[4] > 1 for mesh in meshes)
    print(f"rank_groups: {COUNT} of {COUNT} meshes have megatron-core's groups on all 7 axes ({both} with cp and ep, "
          f"{sum(mesh[6] for mesh in meshes)} with pipelines inside; seed {SEED})")


if __name__ == "__main__":
    sys.exit(main())
