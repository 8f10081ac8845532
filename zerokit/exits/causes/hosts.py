"""Exhausted resources of a machine: memory, /dev/shm, disks, files, processes."""

from __future__ import annotations

from zerokit.exits.causes.entry import HOST_MEMORY, Cause, cause

HOSTS: tuple[Cause, ...] = (
    cause(
        "locked-memory",
        "memory cannot be locked for InfiniBand ('ulimit -l')",
        "Set it to unlimited: ulimit -l unlimited, or --ulimit memlock=-1 of the container",
        r"ibv_reg_mr\w{0,10} failed",
        r"ibv_create_cq failed",
        r"Call to ibv_\w{1,30} failed with error Cannot allocate",
        r"ibv_\w{1,30} failed with error Cannot allocate",
    ),
    cause(
        "shared-memory",
        "shared memory ran out (/dev/shm)",
        "Start the container with --shm-size=16g or --ipc=host; on Kubernetes mount an emptyDir with "
        "medium: Memory at /dev/shm",
        r"is killed by signal: Bus error",
        r"unable to (?:open|write to|allocate) (?:file|shared memory)[^\n]{0,200}(?:torch_|/dev/shm)",
        r"Error while (?:creating|attaching to) shared memory segment",
        r"insufficient shared memory \(shm\)",
        r"No space left on device: '/dev/shm",
        r"Bus error \(core dumped\)",
    ),
    cause(
        "host-memory",
        "a data loader worker was killed, usually because host memory ran out",
        "Set dataloader_num_workers lower; " + HOST_MEMORY,
        r"DataLoader worker \(pid[^\n]{0,80}killed by signal: Killed",
    ),
    cause(
        "host-memory",
        "a process of datasets.map ended without a message: usually killed because host memory ran out",
        "Set num_proc lower (dataset_num_proc, preprocessing_num_workers), and writer_batch_size, too, for "
        "long examples; with 1 process its own error shows. " + HOST_MEMORY,
        r"One of the subprocesses has abruptly died during map operation",
    ),
    cause(
        "host-memory",
        "host memory ran out",
        HOST_MEMORY,
        r"DefaultCPUAllocator: (?:can't|not enough)",
        r"Cannot allocate memory",
        r"\nMemoryError",
        r": MemoryError",
        r"_ArrayMemoryError",
        r"std::bad_alloc",
    ),
    cause(
        "no-space",
        "a disk is full",
        "Make room on that disk, keep fewer checkpoints (training.save_total_limit), or use another "
        "output_dir; caches are in HF_HOME and TORCH_EXTENSIONS_DIR",
        r"No space left on device",
        r"Disk quota exceeded",
        r"file write failed",
        r"PytorchStreamWriter failed writing",
        r"kind: StorageFull",  # safetensors
    ),
    cause(
        "no-space",
        "torch could not write a complete file: usually a disk is full",
        "Check the folder with 'df -h'; make room, or use another one",
        r"basic_ios::clear: iostream error",
        r"inline_container\.cc:\d{1,6}\] \. unexpected pos \d{1,18} vs \d{1,18}",
    ),
    cause(
        "read-only",
        "a file system is read-only",
        "Use a writable output_dir, HF_HOME and TORCH_EXTENSIONS_DIR",
        r"Read-only file system",
    ),
    cause(
        "file-server",
        "a file server is unreachable, or a file was replaced on it",
        "Check the mount on that machine, and write from one machine at a time",
        r"Stale file handle",
        r"Transport endpoint is not connected",
    ),
    cause(
        "open-files",
        "a process had more files open than 'ulimit -n' allows",
        "Raise it: ulimit -n 65536; or torch.multiprocessing.set_sharing_strategy('file_system')",
        r"Too many open files",
        r"received 0 items of ancdata",
    ),
    cause(
        "processes",
        "no more threads or processes can be started ('ulimit -u', or the container's pids limit)",
        "Raise it, or lower OMP_NUM_THREADS and dataloader_num_workers",
        r"fork: (?:retry: )?(?:[A-Za-z]{1,20}: )?Resource temporarily unavailable",
        # The same message appears for a lock that another process has, and for sockets.
        r"fork\(\)\s{0,4}\n(?:[^\n]{0,160}\n)??[^\n]{0,100}BlockingIOError: \[Errno 11\]",
        r"fork_exec\([^\n]{0,200}\n(?:[^\n]{0,160}\n){0,9}?[^\n]{0,100}BlockingIOError: \[Errno 11\]",
        r"can't start new thread",
        r"pthread_create failed",
        r"libgomp: Thread creation failed",
        r"ThreadPoolBuildError",  # tokenizers
    ),
    cause(
        "nvme",
        "reading or writing a file of NVMe offload failed: {what}",
        "Check 'df -h' of nvme_path; it must be a local disk's file system (no overlay, NFS or "
        "tmpfs), and each run needs its own folder",
        r"buffer nbytes != file bytes \d{1,20} != \d{1,20}",
        r"Assertion `n_completes >= min_completes' failed",
        r"Assertion `static_cast<long long int>\(buffer\.nbytes\(\)\) == num_file_bytes' failed",
    ),
)
