#!/usr/bin/env python3
"""Holds `piper model` to transformers: same config in, same number of parameters out, to the parameter.

Sets of configs, each written the new way (rope_parameters, dtype) and read by the program under test:
  published  ../shared/data/models and models_refused, where they are: the makers' own config.json, byte for byte
  defaults   the default config of every decoder that transformers knows, at most 8 layers of it
  foreign    the default config of architectures that Piper does not have: refused in one line
  absent     small configs of the families below, one key left out at a time
  variants   the same small configs, one fact changed at a time (biases, ties, dense layers, ...)
  wrappers   (--full) language models inside models of images and sound, whose encoders are counted apart
  whole      (--full) the default configs of the families below with all of their layers
A published config and a family named in EXACT must agree exactly. Any other architecture may be refused (exit code 2,
a reason), but a number that is wrong is always a failure.

Buffers are not counted, tied parameters once. Environment: PIPER, the program; PIPER_PLANNER, the same without torch,
which is preferred. With --verbose, what was refused is listed. Exits with 77 (skipped) where torch and
transformers are not installed.
"""
import concurrent.futures
import json
import multiprocessing
import os
import pathlib
import subprocess
import sys
import tempfile
import warnings

from switches import skip, skip_case

warnings.filterwarnings("ignore")
try:
    import torch
    import transformers
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoModelForImageTextToText
    from transformers.models.auto.modeling_auto import (MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
                                                        MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES)
except ImportError as error:
    skip(error)

transformers.logging.set_verbosity_error()
PIPER = os.environ.get("PIPER_PLANNER") or os.environ.get("PIPER", "build/release/piper")
SHARED = pathlib.Path(__file__).resolve().parents[2] / "shared" / "data"
PUBLISHED = {SHARED / "models": "*.config.json", SHARED / "models_refused": "*_config.json"}

# Families that must be read, not refused, where this transformers knows them.
EXACT = """afmoe arcee aria_text axk1 cohere cohere2 cohere2_moe cwm deepseek_v2 deepseek_v3 deepseek_v32 ernie4_5 ernie4_5_moe
exaone4 exaone_moe flex_olmo flint gemma gemma2 gemma3_text gemma4_text gemma4_unified_text glm glm4 glm4_moe glm4_moe_lite glm_moe_dsa gpt2 gpt_neox
gpt_oss granite granite_swa granitemoe granitemoe_swa granitemoeshared hunyuan_v1_dense hunyuan_v1_moe hy_v3
hyperclovax iquestcoder jais2 kolibri1 laguna llama llama4_text mellum mimo_v2_flash minicpm3 minimax_m2 minimax_m3_vl_text ministral ministral3 mistral mixtral nanochat
nemotron olmo olmo2 olmo3 olmoe phi phi3 phimoe qwen2 qwen2_moe qwen3 qwen3_5_moe_text qwen3_5_text qwen3_moe qwen3_next
seed_oss smollm3 solar_open stablelm starcoder2 vaultgemma youtu""".split()

# What a default config leaves out and every real one states.
COMPLETE = {
    "deepseek_v2": dict(num_experts_per_tok=6),
    "glm4_moe": dict(head_dim=128),
    "hunyuan_v1_dense": dict(head_dim=128),
    "hunyuan_v1_moe": dict(head_dim=128),
    "ministral": dict(head_dim=128),
    "nemotron": dict(num_key_value_heads=8),
}
# Wrappers whose model holds an image or audio encoder beside the language model that Piper reads.
WRAPPERS = {"gemma3", "gemma4", "gemma4_unified", "got_ocr2", "moss_transcribe_diarize", "emu3", "llama4", "qwen3_5", "qwen3_5_moe",
            "dots3_note", "qwen4_exp", "cohere_compass"}
# What names the encoders of such a model and what joins them to the language model.
TOWERS = ("vision", "visual", "audio", "video_tower", "image_tower", "multi_modal", "projector", "image_newline", "aligner", "merger",
          "connector", "embed_vision", "vqmodel", "generation")
# Wrappers whose encoders Piper counts: exactly.
COUNTED_TOWERS = "gemma3 llama4 mistral3 qwen2_5_vl qwen2_vl qwen3_5 qwen3_5_moe qwen3_vl qwen3_vl_moe".split()
# Architectures that Piper does not have.
FOREIGN = """bamba falcon_h1 falcon_mamba jamba mamba mamba2 nemotron_h granitemoehybrid zamba zamba2 rwkv xlstm kimi_linear
minimax olmo_hybrid bailing_hybrid recurrent_gemma lfm2 lfm2_moe deepseek_v4 gemma3n_text longcat_flash jetmoe bert
roberta""".split()

CHANGES = [
    dict(tie_word_embeddings=True), dict(tie_word_embeddings=False),
    dict(attention_bias=True), dict(attention_bias=False), dict(use_bias=True), dict(use_bias=False),
    dict(qkv_bias=False), dict(attention_out_bias=True), dict(lm_head_bias=True), dict(mlp_bias=True),
    dict(use_qk_norm=True), dict(use_qk_norm=False), dict(qk_layernorm=True), dict(use_parallel_residual=True),
    dict(use_post_norm=False),
    dict(num_key_value_heads=2), dict(head_dim=48), dict(vocab_size=777), dict(intermediate_size=200),
    dict(moe_intermediate_size=72), dict(num_experts=12), dict(num_local_experts=12), dict(n_routed_experts=16),
    dict(first_k_dense_replace=2), dict(decoder_sparse_step=2), dict(mlp_only_layers=[0, 3]),
    dict(interleave_moe_layer_step=2), dict(moe_layers=[1]), dict(num_dense_layers=2), dict(moe_layer_interval=2),
    dict(n_shared_experts=3), dict(num_shared_experts=2), dict(moe_num_shared_experts=0),
    dict(shared_expert_intermediate_size=160), dict(shared_intermediate_size=64), dict(q_lora_rank=None),
    dict(q_lora_rank=32), dict(kv_lora_rank=24), dict(v_head_dim=32), dict(index_n_heads=4),
    dict(linear_num_value_heads=8), dict(linear_conv_kernel_dim=3), dict(sliding_window=64),
]
ABSENT = """num_key_value_heads q_lora_rank kv_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim head_dim n_shared_experts
num_shared_experts moe_num_shared_experts shared_expert_intermediate_size shared_intermediate_size first_k_dense_replace
num_dense_layers moe_layer_start_index mlp_layer_types mlp_only_layers decoder_sparse_step interleave_moe_layer_step
moe_layer_interval n_group topk_group norm_topk_prob tie_word_embeddings attention_bias use_bias mlp_bias use_qk_norm
index_n_heads index_head_dim layer_types rms_norm_eps linear_num_value_heads linear_conv_kernel_dim""".split()
SMALL = dict(num_hidden_layers=5, vocab_size=512, hidden_size=256, intermediate_size=384, pad_token_id=0)
FEW_LAYERS = 8
SMALL_HEADS = dict(num_attention_heads=8, num_key_value_heads=4)


COUNTED = {}  # by config: another spelling of it, or a key that its default fills in, is the same model


def count(config):
    """Parameters of the language model and, apart, of encoders beside it."""
    key = type(config), config.to_json_string()
    if key not in COUNTED:
        COUNTED[key] = count_built(config)
    return COUNTED[key]


def count_built(config):
    kind = type(config).model_type  # the file's own may be another name of it
    auto = AutoModelForCausalLM if kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and kind not in WRAPPERS else AutoModelForImageTextToText
    with torch.device("meta"):
        model = auto.from_config(config)
    model.tie_weights()
    total = sum(p.numel() for p in model.parameters())
    if auto is AutoModelForCausalLM:
        return total, 0
    apart = sum(p.numel() for name, p in model.named_parameters() if any(word in name for word in TOWERS))
    return total - apart, apart


REFUSED = "refused"  # in place of "must be exact": must be refused in one line


class Cases:
    def __init__(self):
        self.cases = []  # (name, config, text, must be exact)

    def add(self, name, config, must, text=None):
        self.cases.append((name, config, text or config.to_json_string(), must))


def old_spelling(text):
    """rope_parameters and dtype as they were written before transformers 5."""
    old = json.loads(text)
    rope = dict(old.pop("rope_parameters"))
    old["rope_theta"] = rope.pop("rope_theta")
    if "partial_rotary_factor" in rope:
        old["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
    old["rope_scaling"] = rope if rope.get("rope_type", "default") != "default" else None
    old["torch_dtype"] = old.pop("dtype", "bfloat16")
    return json.dumps(old)


def published(cases):
    for folder, pattern in PUBLISHED.items():
        if not folder.is_dir():
            skip_case("published configs", f"the folder ../shared/data/{folder.name} is not there")
            continue
        for path in sorted(folder.glob(pattern)):
            published_one(cases, path)


def published_one(cases, path):
    text = path.read_text()
    inner = json.loads(text)
    inner = inner.get("text_config", inner)
    # The makers' names of what transformers has under another.
    kind = {"kimi_k2": "deepseek_v3", "minimax_m3": "minimax_m3_vl_text"}.get(inner["model_type"], inner["model_type"])
    if kind not in CONFIG_MAPPING:
        print(f"published {path.name}: this transformers does not know '{kind}'")
        return
    if kind == "step3p7" and "text_config" not in inner:
        return step(cases, path, text, inner)
    inner.pop("quantization_config", None)
    cases.add(f"published {path.name}", CONFIG_MAPPING[kind](**inner), True, text)


def step(cases, path, text, inner):
    """transformers knows Step-3.7 with its vision tower around it only; the published file holds the language model alone."""
    dense = inner.get("first_k_dense_replace", 3)
    inner = {k: v for k, v in inner.items() if k not in ("model_type", "quantization_config")}
    inner["moe_layers_enum"] = list(range(dense, inner["num_hidden_layers"]))
    whole = CONFIG_MAPPING["step3p7"](text_config=inner)
    cases.add(f"published {path.name}", whole, True, text)


def foreign(cases):
    for kind in FOREIGN:
        if kind in CONFIG_MAPPING:
            cases.add(f"foreign {kind}", CONFIG_MAPPING[kind](), REFUSED)


def wrappers(cases):
    for kind in sorted(set(MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES) | WRAPPERS):
        try:
            config = CONFIG_MAPPING[kind]()
        except Exception:  # a default config that is not valid
            continue
        cases.add(f"wrapper {kind}", config, kind in COUNTED_TOWERS)


def whole(cases):
    for kind in EXACT:
        if kind in CONFIG_MAPPING:
            cases.add(f"whole {kind}", CONFIG_MAPPING[kind](**COMPLETE.get(kind, {})), True)


def defaults(cases):
    for kind in sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES):
        if kind in WRAPPERS:
            continue
        try:
            config = CONFIG_MAPPING[kind](**COMPLETE.get(kind, {}))
        except Exception:  # a default config that is not valid
            continue
        if getattr(config, "num_hidden_layers", 0) > FEW_LAYERS:  # building takes a time for each
            try:
                config = CONFIG_MAPPING[kind](**COMPLETE.get(kind, {}), num_hidden_layers=FEW_LAYERS)
            except Exception:  # the default layers alone are valid
                pass
        cases.add(f"default {kind}", config, kind in EXACT)


def has(config, key):
    """A key whose values differ by layer raises an error of its own when it is read."""
    try:
        return hasattr(config, key)
    except Exception:  # AmbiguousGlobalPerLayerAttributeError, which is no AttributeError
        return True


def small_config(kind, change):
    known = CONFIG_MAPPING[kind](**COMPLETE.get(kind, {}))
    keep = {k: v for k, v in {**SMALL, **SMALL_HEADS}.items() if has(known, k)}
    return CONFIG_MAPPING[kind](**{**COMPLETE.get(kind, {}), **keep, **change})


def variants(cases):
    for kind in EXACT:
        if kind not in CONFIG_MAPPING:
            print(f"variants of {kind}: this transformers does not know it")
            continue
        known = CONFIG_MAPPING[kind](**COMPLETE.get(kind, {}))
        for change in CHANGES:
            if not all(has(known, key) for key in change):
                continue
            try:
                config = small_config(kind, change)
            except Exception:  # not valid in this family
                continue
            cases.add(f"{kind} {change}", config, False)
            text = cases.cases[-1][2]
            if isinstance(json.loads(text).get("rope_parameters", {}).get("rope_theta"), float):
                cases.add(f"{kind} {change}, old spelling", config, False, old_spelling(text))


def absent(cases):
    """Keys left out: the family's configuration class fills them in, and Piper knows with what."""
    for kind in EXACT:
        if kind not in CONFIG_MAPPING:
            continue
        whole = json.loads(small_config(kind, {}).to_json_string())
        for key in ABSENT:
            if key not in whole:
                continue
            rest = {k: v for k, v in whole.items() if k != key}
            try:
                config = CONFIG_MAPPING[kind](**rest)
            except Exception:  # not valid in this family
                continue
            try:
                heads, kv_heads = config.num_attention_heads, getattr(config, "num_key_value_heads", None)
            except Exception:  # they differ by layer
                heads, kv_heads = 0, 0
            if kv_heads and heads % kv_heads:  # it can be built and not run
                continue
            cases.add(f"{kind} without {key}", config, False, json.dumps(rest))


def ask(text):
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        file.write(text)
        file.flush()
        return subprocess.run([PIPER, "model", file.name, "--json"], capture_output=True, text=True)


def judge_foreign(name, text):
    done = ask(text)
    lines = done.stderr.strip().splitlines()
    if done.returncode == 2 and len(lines) == 1 and "cannot describe" in lines[0]:
        return "refused", f"{name}: {lines[0]}"
    return "failed", f"{name}: exit code {done.returncode}, not one line: {done.stderr.strip()[:300]}"


def judge(case):
    name, config, text, must = case
    if must == REFUSED:
        return judge_foreign(name, text)
    try:
        expected, apart = count(config)
    except Exception as error:  # whatever a modeling file raises
        why = f"{name}: transformers cannot build it: {str(error).splitlines()[0][:100] if str(error) else error!r}"
        return ("failed" if must else "unbuildable"), why
    done = ask(text)
    if done.returncode == 2 and done.stderr.strip() and not must:
        return "refused", f"{name}: {done.stderr.strip().splitlines()[0]}"
    if done.returncode != 0:
        return "failed", f"{name}: exit code {done.returncode}: {done.stderr.strip()[:300]}"
    answer = json.loads(done.stdout)
    counted = answer["parameters"]["total"]
    if counted != expected:
        return "failed", f"{name}: {counted} counted, {expected} in transformers ({counted - expected:+d})"
    towers = [tower["parameters"] for tower in answer["towers"]]
    if must and name.startswith("wrapper") and towers != [apart]:
        return "failed", f"{name}: encoders of {towers} counted, {apart} in transformers"
    return "exact", name


def main():
    cases = Cases()
    groups = [published, defaults, foreign, variants, absent]
    if "--full" in sys.argv:
        groups += [wrappers, whole]
    for group in groups:
        before = len(cases.cases)
        group(cases)
        print(f"{group.__name__}: {len(cases.cases) - before} configs", flush=True)
    count(small_config("mixtral", {}))  # what a first model imports, 10 s of processor time, is imported once
    fork = multiprocessing.get_context("fork")
    with concurrent.futures.ProcessPoolExecutor(os.cpu_count(), mp_context=fork) as pool:
        results = list(pool.map(judge, cases.cases, chunksize=4))
    if "--verbose" in sys.argv:
        for verdict, line in results:
            if verdict in ("refused", "unbuildable"):
                print(verdict, line)
    failures = [line for verdict, line in results if verdict == "failed"]
    tally = {v: sum(verdict == v for verdict, _ in results) for v in ("exact", "refused", "unbuildable", "failed")}
    print(f"transformers {transformers.__version__}: {tally}")
    for line in failures:
        print("FAILED", line)
    return 1 if failures or tally["exact"] == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
