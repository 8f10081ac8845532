"""What prevents a run from starting: launchers, ports, ssh, tracking services."""

from __future__ import annotations

from zerokit.exits.causes.entry import Cause, Weight, cause

LAUNCH: tuple[Cause, ...] = (
    cause(
        "port-in-use",
        "the port of the rendezvous is taken",
        "Choose another one: --master_port 29511 (deepspeed, torchrun), --main_process_port "
        "(accelerate); 'ss -ltnp' shows the process that has it",
        r"EADDRINUSE",
        r"server socket has failed to (?:bind|listen)[^\n]{0,200}errno: 98",
        r"port is taken",
    ),
    cause(
        "port-in-use",
        "a port is taken by another process",
        "'ss -ltnp' shows the process, often an earlier run; end it, or choose another port",
        r"Address already in use",
        r"address already in use",
    ),
    cause(
        "no-script",
        "Python cannot open the script: {what}",
        "Fix its path, which is relative to the start folder on every machine",
        r"can't open file '(?P<what>[^'\n]{1,300})'",
    ),
    cause(
        "ssh",
        "the first machine cannot log in to another one by ssh: {what}",
        "Try 'ssh -o BatchMode=yes HOST true' from the first machine; set up a key, or start without ssh",
        r"Permission denied \([\w,-]{1,80}\)",
        r"Host key verification failed",
        r"host=\S{1,100} was not reachable via ssh",  # DeepSpeed's launcher
        r"Could not resolve hostname [^\n:]{1,100}",
        r"ssh: connect to host [^\n]{1,120}",
    ),
    cause(
        "no-pdsh",
        "DeepSpeed's launcher needs pdsh on the first machine",
        "apt install pdsh, or --launcher openmpi, or torchrun on each machine",
        r"launcher 'pdsh' not installed",
        r"pdsh: (?:command )?not found",
    ),
    cause(
        "no-launcher",
        "the script was started without a launcher, so DeepSpeed asks MPI for its rank",
        "Start it with deepspeed, torchrun or accelerate launch",
        r"No module named 'mpi4py'",
        r"environment variable (?:RANK|WORLD_SIZE|MASTER_ADDR|LOCAL_RANK) expected",
    ),
    cause(
        "hostfile",
        "DeepSpeed's launcher cannot read the hostfile: {what}",
        "Each line is 'HOST slots=GPUS', each host once; 'zerokit doctor --hostfile FILE' checks all hosts",
        r"Hostfile contains multiple entries for [^\n,]{1,100}",
        r"Hostfile contains a bad entry: [^\n,]{1,100}",
        r"Hostfile is (?:empty|not formatted)[^\n,]{0,80}",
    ),
    cause(
        "no-process-group",
        "ranks started to communicate before there was a process group",
        "If there was no earlier exception: start it with deepspeed, torchrun or accelerate launch; "
        "a script without a Trainer calls deepspeed.init_distributed() first",
        r"Default process group has not been initialized",
        weight=Weight.EXCEPTION,
    ),
    cause(
        "local-rank",
        "the script does not accept --local_rank, which its launcher adds",
        "Add it to the script's options, or start with torchrun, which only sets LOCAL_RANK; "
        "deepspeed: --no_local_rank",
        r"unrecognized arguments: --local[-_]rank",
    ),
    cause(
        "no-command",
        "a command is not found on that machine: {what}",
        "A shell that ssh or Slurm starts reads no .bashrc: give the full path, activate the "
        "environment in the job's script, or write PATH=... into .deepspeed_env",
        r"bash: (?:line \d{1,6}: )?(?P<what>[^\s:]{1,100}): command not found",
        r"execve\(\): (?P<what>[^\s:]{1,100}): No such file or directory",
        weight=Weight.MENTIONED,
    ),
    cause(
        "wandb",
        "Weights & Biases could not be reached, or has no key: {what}",
        "Run 'wandb login' on that machine before, or set WANDB_MODE=offline, or report_to: none",
        r"api_key not configured \(no-tty\)",
        r"wandb\.errors\.[\w.]{0,20}AuthenticationError: [^\n]{1,160}",
        r"wandb\.errors\.[\w.]{0,20}CommError: [^\n]{0,160}(?:error 401|[Tt]imed out|onnection|etwork)",
        r"Error communicating with wandb process",
    ),
)
