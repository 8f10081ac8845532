{% extends "script.sh" %}
{% block start %}
{% set launcher = "env " ~ safe_path ~ "=1 " ~ (python.parent / "deepspeed") | quote %}
{% set arguments = ["--module"] + job.words[1:] %}
{% if not job.hosts %}
exec {{ launcher }} --num_gpus {{ job.gpus_per_node }} {{ arguments | join_words }}
{% else %}
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
cat > "$made/hosts" <<'HOSTS'
{% for host, slots in job.hosts.items() %}
{{ host }} slots={{ slots }}
{% endfor %}
HOSTS
{# DeepSpeed does not quote the variables that it exports to remote shells, and zsh expands =eth0 to a path. So
   they go through a file. The user's own files come last and win, because this file replaces them. Source:
   deepspeed/launcher/runner.py, `DEEPSPEED_ENVIRONMENT_PATHS`; multinode_runner.py, `add_export`. #}
{% if variables %}
printf '%s\n' {{ quoted_variables | join_words }} > "$made/variables"
own=${DS_ENV_FILE-.deepspeed_env}
case "$own" in /*) own=("$own") ;; *) own=(~/"$own" "./$own") ;; esac
sed "" "${own[@]}" >> "$made/variables" 2> /dev/null || true
export DS_ENV_FILE="$made/variables"
{% endif %}
# ssh waits for hours for a machine that is gone, and DeepSpeed for ssh.
export PDSH_SSH_ARGS_APPEND="-o ServerAliveInterval=10 -o ServerAliveCountMax=3 ${PDSH_SSH_ARGS_APPEND:-}"
{{ launcher }} --hostfile "$made/hosts" --master_port {{ port }} {{ arguments | join_words }}
{% endif %}
{% endblock %}
