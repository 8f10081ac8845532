"""Messages about loaded files: weights, checkpoints, models of the Hub."""

from __future__ import annotations

from zerokit.exits.causes.entry import Cause, Weight, cause

_ASK = "Check its name; request access on its page, then 'hf auth login' or HF_TOKEN on every machine"

CHECKPOINTS: tuple[Cause, ...] = (
    cause(
        "other-ranks",
        "the checkpoint is partitioned for {saved} ranks, and this run has {ranks}",
        "'zerokit checkpoint reshard PATH --num-gpus N -o DIR' converts it; 'zerokit train' does it "
        "automatically",
        r"The checkpoint being loaded used a DP world size of (?P<saved>\d{1,7}) but the current world size "
        r"is (?P<ranks>\d{1,7})",
    ),
    cause(
        "partitioned-parameter",
        "weights were loaded into a model whose parameters ZeRO-3 had partitioned: {name}",
        "Load them with from_pretrained, or before deepspeed.initialize and outside of "
        "deepspeed.zero.Init; else in deepspeed.zero.GatheredParameters(..., modifier_rank=0)",
        r"size mismatch for (?P<name>[^\s:]{1,200}): copying a param with shape torch\.Size\(\[[\d, "
        r"]{0,80}\]\) "
        r"from checkpoint, the shape in current model is torch\.Size\(\[0\]\)",
    ),
    cause(
        "empty-weights",
        "the checkpoint has no weights, because ZeRO-3 had partitioned them when it was saved: "
        "{name} has shape [{shape}]",
        "'zerokit checkpoint export' makes a model from the folder global_step*; save with "
        "stage3_gather_16bit_weights_on_model_save",
        r"size mismatch for (?P<name>[^\s:]{1,200}): copying a param with shape "
        r"torch\.Size\(\[(?P<shape>[01]?)\]\) "
        r"from checkpoint",
    ),
    cause(
        "other-shape",
        "the checkpoint's model has other sizes: {name} is [{saved}] there, and [{own}] here",
        "Compare its config.json with the model's. If only rows differ: call resize_token_embeddings "
        "as before saving; if all sizes are smaller by one factor: it is one rank of tensor "
        "parallelism",
        r"size mismatch for (?P<name>[^\s:]{1,200}): copying a param with shape "
        r"torch\.Size\(\[(?P<saved>[\d, ]{1,80})"
        r"\]\) from checkpoint, the shape in current model is torch\.Size\(\[(?P<own>[\d, ]{1,80})\]\)",
    ),
    cause(
        "other-keys",
        "the checkpoint has other parameters than the model: {what}",
        "A prefix such as module., _orig_mod. or base_model.model. comes from a wrapper: save the "
        "wrapped model; load an adapter with peft",
        r"key\(s\) in state_dict:(?P<what>[^\n]{0,120})",
    ),
    cause(
        "damaged-file",
        "a weight file is damaged or incomplete: {what}",
        "Compare its size with the source's, and download it again; about 130 bytes are a Git LFS "
        "pointer (git lfs pull); 'zerokit checkpoint verify' checks a checkpoint",
        r"Error while deserializing(?: header)?: (?P<what>[^\n]{1,100})",
        r"PytorchStreamReader failed (?P<what>[^\n]{1,100})",
        r"invalid magic number; corrupt file\?",
        r"unexpected EOF, expected \d{1,20} more bytes",
        r"UnpicklingError: (?P<what>invalid load key, [^\n]{1,20})",
        # torch's own line. Other pickled objects may end the same way, such as arguments of a process.
        r"magic_number = pickle_module\.load\([^\n]{0,60}\n(?:[^\n]{0,160}\n)??[^\n]{0,100}"
        r"EOFError: (?P<what>Ran out of input)",
        # '<', 'v', '{': no pickle starts so, but HTML pages, Git LFS pointers and JSON do.
        r"Unsupported operand (?:60|118|123)\b",
        r"cloned a repository without having git-lfs installed",
    ),
    cause(
        "weights-only",
        "since 2.6 torch loads only tensors by default, and this checkpoint has other objects: {what}",
        "Update the library that loads it: current DeepSpeed, transformers and accelerate load their "
        "own files; or set TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1 for a file that you trust",
        r"Weights only load failed(?:[^\n]{0,400}\n){1,6}?[^\n]{0,200}GLOBAL (?P<what>[\w.]{1,120}) was not "
        r"an allowed global",
    ),
    cause(
        "other-optimizer",
        "the checkpoint's optimizer has other parameter groups than this run's",
        "Train the same parameters with the same optimizer as before (LoRA modules, frozen ones, "
        "weight decay), or start from the weights only",
        r"contains a parameter group that doesn't match the size of optimizer's group",
        r"loaded state dict has a different number of parameter groups",
    ),
    cause(
        "missing-part",
        "the checkpoint has no part for this rank: {what}",
        "It was saved on another number of ranks, or the part is on another machine: 'zerokit "
        "checkpoint show PATH' shows which, 'zerokit checkpoint reshard PATH --num-gpus N -o DIR' "
        "converts it",
        r"No such file or directory: '[^'\n]{0,300}?"
        r"(?P<what>(?:bf16_)?zero_pp_rank_\d{1,6}_mp_rank_\w{1,60}\.pt)",
    ),
    cause(
        "no-checkpoint",
        "there is no checkpoint to resume from: {what}",
        "Name a folder checkpoint-N that is complete on every machine; 'zerokit checkpoint show "
        "PATH' shows its content",
        r"Can't find a valid checkpoint at [^\n]{1,200}",
        r"No valid checkpoint found in output directory[^\n]{0,200}",
    ),
    cause(
        "hub-access",
        "the Hub does not give this user access to the model: {what}",
        _ASK,
        r"You are trying to access a gated repo",
        r"Cannot access gated repo for url [^\n]{1,160}",
    ),
    cause(
        "hub-access",
        "the Hub does not give this user access to the model: {what}",
        _ASK,
        r"401 Client Error[^\n]{0,80}huggingface[^\n]{0,80}",
        r"403 Client Error[^\n]{0,80}huggingface[^\n]{0,80}",
        weight=Weight.EXCEPTION,  # It is also said of a folder that is not there, by a line that says so.
    ),
    cause(
        "no-model",
        "there is no folder '{what}' here, and no model of that name that the Hub gives to this user",
        "A folder: it must be on every machine, and its path counts from the folder of the start. A model: "
        + _ASK[0].lower()
        + _ASK[1:],
        r"Error: (?P<what>[^\n]{1,200}?) is not a local folder and is not a valid model identifier",
    ),
    cause(
        "no-hub",
        "a file is not in the cache, and the Hub cannot be reached",
        "Fetch the model on a machine with a network (hf download NAME), into an HF_HOME that all see, and "
        "set HF_HUB_OFFLINE=1; or name its folder",
        r"We couldn't connect to 'https?://[^'\n]{1,100}'",
        r"we cannot find the requested files in the (?:local|disk) cache",
        r"Cannot find the requested files in the disk cache",
        r"we cannot find the appropriate snapshot folder",
        r"ConnectionError: [^\n]{0,40}HTTPSConnectionPool\(host='huggingface\.co'",
    ),
    cause(
        "new-model",
        "this version of transformers does not support the model: {what}",
        "Update transformers, or tokenizers: the model is newer",
        r"model type `(?P<what>[^`\n]{1,80})` but Transformers does not recognize this architecture",
        r"(?P<what>data did not match any variant of untagged enum \w{1,40})",
    ),
)
