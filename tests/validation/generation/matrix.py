"""Completions in every mode, on 1 to 3 CPU ranks, in fp32: ``python -m tests.validation.generation.matrix [--write]``.

Greedy completions are compared with transformers' ``generate`` on one process, token for token: a token is a word
of its own in the text. Sampled ones are compared with those of one process and a batch of one. "gathered" is an
engine in training, between its steps; the other modes are runs of ``zerokit generate``.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.tiny import launch

RECORD = Path(__file__).parent.parent / "results" / "generation_matrix.json"
MODES = ("replicated", "gathered", "sharded", "tensor", "offloaded")
RANKS = (1, 2, 3)
VOCABULARY = 120
"""Divisible by 2 and 3, as heads and widths below are: tensor parallelism divides them."""
ENDS = list(range(2, 18))
"""So many that completions end at all steps."""
NEW_TOKENS = 14
_TOKENS = {"vocab_size": VOCABULARY, "bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0}
_WIDTHS = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 6}
_LLAMA = {**_WIDTHS, "intermediate_size": 72, "num_key_value_heads": 6, "max_position_embeddings": 96}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", _LLAMA),
    "llama, grouped heads": ("llama", {**_LLAMA, "num_key_value_heads": 2}),
    "llama, tied": ("llama", {**_LLAMA, "tie_word_embeddings": True}),
    "llama, LoRA": ("llama", _LLAMA),
    "llama, beams": ("llama", _LLAMA),
    "mixtral": ("mixtral", {**_LLAMA, "num_local_experts": 4}),
    "gpt_neox": ("gpt_neox", {**_WIDTHS, "intermediate_size": 72, "max_position_embeddings": 96}),
    "mistral, sliding window": ("mistral", {**_LLAMA, "sliding_window": 6}),
    "gemma3, sliding window": (
        "gemma3_text",
        {**_LLAMA, "head_dim": 8, "sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "gpt2": ("gpt2", {"n_embd": 48, "n_layer": 2, "n_head": 6, "n_positions": 96}),
    "opt": ("opt", {**_WIDTHS, "ffn_dim": 72, "max_position_embeddings": 96, "word_embed_proj_dim": 48}),
    "bloom, ALiBi": ("bloom", {"hidden_size": 48, "n_layer": 2, "n_head": 6}),
    "mpt, ALiBi": ("mpt", {"d_model": 48, "n_layers": 2, "n_heads": 6, "max_seq_len": 96}),
    "falcon, ALiBi": ("falcon", {**_WIDTHS, "alibi": True, "new_decoder_architecture": False, "multi_query": False}),
    "t5": ("t5", {"d_model": 48, "d_ff": 72, "num_layers": 2, "num_heads": 6, "d_kv": 8}),
    "bart": (
        "bart",
        {
            **{f"{half}_{key}": n for half in ("encoder", "decoder") for key, n in (("layers", 2), ("ffn_dim", 72))},
            **{"d_model": 48, "encoder_attention_heads": 6, "decoder_attention_heads": 6, "forced_eos_token_id": None},
        },
    ),
}
COMMON = {"max_new_tokens": NEW_TOKENS, "eos_token_id": ENDS}
CASES: dict[str, dict[str, Any]] = {
    "greedy": {"do_sample": False},
    "sampled": {"do_sample": True, "temperature": 0.8, "top_k": 30, "num_return_sequences": 2},
}

RANK_SCRIPT = """
import json, os, sys
from pathlib import Path
from unittest import mock
os.cpu_count = lambda: 8  # more ranks than this machine has cores
import zerokit
from zerokit.cli.main import command_line
from zerokit.distributed.group import leave, run_on_all_ranks
from zerokit.errors import ZerokitError
import zerokit.generation.main as generation

def options_of(words):
    with mock.patch("zerokit.distributed.group.leave"), mock.patch("zerokit.generation.main.main") as run:
        command_line()(["generate", *words], standalone_mode=False)
    return run.call_args.args[0]

def engine_of(folder):
    import deepspeed, torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM
    adapter = Path(folder) / "adapter_config.json"
    base = json.loads(adapter.read_text())["base_model_name_or_path"] if adapter.exists() else folder
    is_seq2seq = AutoConfig.from_pretrained(base).is_encoder_decoder
    model = (AutoModelForSeq2SeqLM if is_seq2seq else AutoModelForCausalLM).from_pretrained(base, dtype=torch.float32)
    if adapter.exists():
        from peft import PeftModel
        model = PeftModel.from_pretrained(model, folder, is_trainable=True)
    zero = {"stage": 3, "stage3_param_persistence_threshold": 100}
    config = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": zero, "zero_allow_untested_optimizer": True,
              "zero_force_ds_cpu_optimizer": False}
    trained = [each for each in model.parameters() if each.requires_grad]
    # Steps that change nothing: the weights stay those of the files.
    optimizer = torch.optim.SGD(trained, 0.0)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=trained, optimizer=optimizer, config=config)
    def step():
        ids = torch.randint(20, 100, (2, 9))
        engine.backward(engine(input_ids=ids, labels=ids).loss)
        engine.step()
    step()
    return engine, step

def main(group):
    engines = {}
    for case in json.loads(Path("cases.json").read_text()):
        try:
            if case["mode"] == "gathered":
                from transformers import AutoTokenizer
                if case["model"] not in engines:
                    engines.clear()
                    engines[case["model"]] = engine_of(case["model"])
                engine, step = engines[case["model"]]
                prompts = [json.loads(line)["prompt"] for line in Path("prompts.jsonl").read_text().splitlines()]
                options = {**case["options"], "mode": "gathered"}
                tokenizer = AutoTokenizer.from_pretrained("tokenizer")
                made = zerokit.generate(engine, prompts, tokenizer=tokenizer, **options)
                step()
                found = [[[*vars(each).values()] for each in one.completions] for one in made]
            else:
                generation.generate(group, options_of(case["words"]), sys.stdout)
                found = None
        except ZerokitError as error:
            found = f"{error.exit_code} {error}"
        if group.ranks.is_main:
            with open("found.jsonl", "a") as lines:
                print(json.dumps({"family": case["family"], "case": case["case"], "found": found}), file=lines)

leave(run_on_all_ranks(main))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help=f"write {RECORD.name}")
    parser.add_argument("--modes", nargs="*", default=MODES)
    parser.add_argument("--ranks", type=int, nargs="*", default=RANKS)
    parser.add_argument("--families", nargs="*", default=list(FAMILIES))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_inputs(folder, given.families)
        run_cases(folder, "replicated", 1, given.families)  # what the others are compared with
        for mode in given.modes:
            for ranks in given.ranks:
                rows = run_cases(folder, mode, ranks, given.families)
                if given.write:
                    add_to_record(rows)


def add_to_record(rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows in the place of those of the same mode, ranks and family."""
    kept = json.loads(RECORD.read_text(encoding="utf-8"))["rows"] if RECORD.exists() else []
    merged = {(row["mode"], row["ranks"], row["family"]): row for row in [*kept, *rows]}
    order = {name: place for place, name in enumerate([*MODES, *FAMILIES])}
    found = sorted(merged.values(), key=lambda row: (order[row["mode"]], row["ranks"], order[row["family"]]))
    lines = ",\n".join(f"  {json.dumps(row)}" for row in found)
    text = f'{{\n "tokens": {NEW_TOKENS},\n "prompts": {len(prompts())},\n "rows": [\n{lines}\n ]\n}}\n'
    RECORD.write_text(text, encoding="utf-8")


def prompts() -> list[str]:
    """Short and long ones, mixed."""
    draw = random.Random(0)
    lengths = [1, 12, 3, 30, 2, 7, 19, 5]
    return [" ".join(f"w{draw.randrange(18, VOCABULARY)}" for _ in range(length)) for length in lengths]


def make_inputs(folder: Path, families: Sequence[str]) -> None:
    """A tokenizer, the models with it, prompts, and what one process makes of them."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {"<pad>": 0, "<end>": 1, **{f"w{token}": token for token in range(2, VOCABULARY)}}
    core = Tokenizer(models.WordLevel(words, unk_token="<end>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<end>", pad_token="<pad>")
    tokenizer.save_pretrained(folder / "tokenizer")
    lines = "".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts())
    (folder / "prompts.jsonl").write_text(lines, encoding="utf-8")
    expected = {}
    for family in families:
        place = folder / "models" / family
        model = make_model(family, place)
        tokenizer.save_pretrained(place)
        expected[family] = reference(model, tokenizer, beams=2 if "beams" in family else 1)
    (folder / "expected.json").write_text(json.dumps(expected), encoding="utf-8")


def make_model(family: str, place: Path) -> Any:
    """A model with random weights, so large that tokens vary; saved with its adapter, if it has one."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

    kind, settings = FAMILIES[family]
    config = AutoConfig.for_model(kind, **_TOKENS, **settings)
    torch.manual_seed(1)
    if config.is_encoder_decoder:
        config.decoder_start_token_id = 0
    model = (AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM).from_config(config).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    if "LoRA" not in family:
        model.save_pretrained(place)
        return model
    from peft import LoraConfig, get_peft_model

    base = place.with_name(f"{family}, base")
    model.save_pretrained(base)
    model.name_or_path = str(base)
    settings = {"target_modules": ["q_proj", "o_proj", "down_proj"], "init_lora_weights": False}
    adapted = get_peft_model(model, LoraConfig(r=4, base_model_name_or_path=str(base), **settings)).eval()
    adapted.save_pretrained(place)
    return adapted


def reference(model: Any, tokenizer: Any, *, beams: int) -> list[list[list[Any]]]:
    """Text, number of tokens and end of each prompt's greedy completion by plain transformers, one at a time."""
    import torch

    found = []
    for prompt in prompts():
        ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
        options = {**COMMON, "do_sample": False, "pad_token_id": 0, "num_beams": beams}
        made = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **options)[0]
        tokens = made[1 if model.config.is_encoder_decoder else ids.shape[1] :].tolist()
        end = next((at for at, token in enumerate(tokens) if token in ENDS), None)
        text = tokenizer.decode(tokens[:end], skip_special_tokens=True)
        found.append([[text, len(tokens) if end is None else end + 1, "length" if end is None else "stop"]])
    return found


def run_cases(folder: Path, mode: str, ranks: int, families: Sequence[str]) -> list[dict[str, Any]]:
    """All families in one mode, by one launch."""
    cases = []
    for family in families:
        for name, own in CASES.items():
            options = {**COMMON, **own, "batch_size": 2 * ranks - 1}
            options |= {"num_beams": 2} if "beams" in family else {}
            model, out = f"models/{family}", f"{family}, {name}.jsonl"
            words = ["--model", model, "--prompts", "prompts.jsonl", "-o", out, "--mode", mode, "--force"]
            for key, value in options.items():
                words += [f"--{key.replace('batch_size', 'batch-size')}", json.dumps(value)]
            case = {"family": family, "case": name, "mode": mode, "model": model, "words": words}
            cases.append({**case, "options": options})
    (folder / "cases.json").write_text(json.dumps(cases), encoding="utf-8")
    (folder / "ranks.py").write_text(RANK_SCRIPT, encoding="utf-8")
    (folder / "found.jsonl").write_text("", encoding="utf-8")
    run = launch(["ranks.py"], ranks=ranks, launcher="none", cwd=folder)
    if run.returncode:
        print(run.stdout, run.stderr[-6000:], file=sys.stderr, flush=True)
    rows = list[dict[str, Any]]()
    for line in (folder / "found.jsonl").read_text(encoding="utf-8").splitlines():
        result = json.loads(line)
        if not rows or rows[-1]["family"] != result["family"]:
            rows.append({"mode": mode, "ranks": ranks, "family": result["family"]})
        rows[-1][result["case"]] = judge(folder, result)
    for row in rows:
        print(json.dumps(row), file=sys.stderr, flush=True)
    return rows


def judge(folder: Path, result: dict[str, Any]) -> str:
    """``equal``, what differs, or the error."""
    found = result["found"]
    if isinstance(found, str):
        return found
    if found is None:
        lines = (folder / f"{result['family']}, {result['case']}.jsonl").read_text(encoding="utf-8").splitlines()
        records = map(json.loads, lines)
        keys = ("completion", "num_completion_tokens", "finish_reason")
        found = [[[part[key] for key in keys] for part in one.get("completions", [one])] for one in records]
    if result["case"] == "greedy":
        expected = json.loads((folder / "expected.json").read_text(encoding="utf-8"))[result["family"]]
    else:  # the first that is made is the one of one process
        kept = folder / f"{result['family']}.sampled.json"
        if not kept.exists():
            kept.write_text(json.dumps(found), encoding="utf-8")
        expected = json.loads(kept.read_text(encoding="utf-8"))
    differing = sum(mine != other for mine, other in zip(found, expected, strict=True))
    return f"{differing} of {len(expected)} differ" if differing else "equal"


if __name__ == "__main__":
    main()
