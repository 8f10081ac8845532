{% extends "script.sh" %}
{% from "torchrun.jinja" import torchrun with context %}
{% block header %}
{% if job.num_nodes > 1 %}
# Start it on every machine: MASTER_ADDR=10.0.0.1 NODE_RANK=0 bash FILE
{% endif %}
{% endblock %}
{% block start %}
{% set first = "-" ~ first_host if first_host else "?the address of the first machine" %}
{% set is_one = job.num_nodes == 1 %}
{% set node = "0" if is_one else '"${NODE_RANK:?the number of this machine, from 0}"' %}
{% set address = "127.0.0.1" if is_one else '"${MASTER_ADDR:' ~ first ~ '}"' %}
{% set program = "python" if job.is_portable else python %}
exec {{ torchrun(program, node, address, '"${MASTER_PORT:-' ~ port ~ '}"') }} {{ job.words | join_words }}
{% endblock %}
