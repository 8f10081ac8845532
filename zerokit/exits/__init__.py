"""Why a run died, from its log or exit code: the cause, then its consequences."""
