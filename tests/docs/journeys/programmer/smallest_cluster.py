"""The smallest cluster on which a model is trained in full."""

import zerokit

for gpu in ("RTX 4090", "A100-80GB", "H100"):
    for num_gpus in (1, 2, 4, 8, 16):
        answer = zerokit.estimate(
            "llama-3.1-8b", num_gpus=num_gpus, zero_stage=3, micro_batch_size=1, seq_len=4096, gpu=gpu,
            gradient_checkpointing=True,
        )  # fmt: skip
        if answer.fits:
            gib = answer.device.peak_bytes / 2**30
            print(f"{gpu}: {num_gpus} GPUs, peak {gib:.1f} GiB")
            break
    else:
        print(f"{gpu}: more than {num_gpus} GPUs")
