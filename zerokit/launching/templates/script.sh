#!/bin/bash
{% block header %}{% endblock %}
set -euo pipefail
{% if job.is_portable %}
cd -- "$(dirname -- "${BASH_SOURCE[0]}")"
{% else %}
cd -- {{ job.folder | quote }}
export PATH={{ python.parent | quote }}:$PATH
{% endif %}
{% for name, value in variables.items() %}
{% if loop.first %}
# Recommended by 'zerokit doctor':
{% endif %}
export {{ name }}={{ value }}
{% endfor %}
{% block start %}{% endblock %}
