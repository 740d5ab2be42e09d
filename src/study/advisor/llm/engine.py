"""The engine's own process: it serves one model on the loopback interface until its standard input ends.

It is run as a file (see `study.advisor.llm.local`) and imports nothing of the study, so that it starts fast.
"""

from __future__ import annotations

import json
import os
import sys


def main() -> None:
    """Load the model, print the address once it answers, and wait.

    The only argument is a JSON object: path, alias, context, threads, port (0: a free one).
    """
    import xllamacpp

    options = json.loads(sys.argv[1])
    params = xllamacpp.CommonParams()
    params.model.path, params.model_alias = options["path"], {options["alias"]}
    params.hostnames, params.port = ["127.0.0.1"], options["port"]
    params.n_ctx, params.n_parallel = options["context"], 1
    # Threads that share a core wait for each other at every layer: `taskset` on one core means one thread.
    free = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else options["threads"]
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = min(options["threads"], free)
    # One request at a time keeps the longest common prefix of prompts in place; copies of earlier states, up to 8 GB
    # by default, are not kept.
    params.cache_prompt, params.cache_ram_mib = True, 0
    # No page, no view of others' prompts, and no web page of another origin reads a reply.
    params.ui, params.endpoint_slots, params.cors_origins = False, False, ""
    params.verbosity = 1  # errors
    server = xllamacpp.Server(params)
    sys.stdout.write(f"{server.listening_address}\n")
    sys.stdout.flush()
    # The pipe ends when the study closes it or dies, even by SIGKILL. (PR_SET_PDEATHSIG would end the engine with the
    # thread that started it.)
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main()
