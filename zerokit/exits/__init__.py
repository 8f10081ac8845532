"""Why a run died: what its log or its exit code says, the cause before its consequences."""
