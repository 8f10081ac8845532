"""Every final value of a ds_config, and who filled it: the Trainer, accelerate, the script or DeepSpeed."""
