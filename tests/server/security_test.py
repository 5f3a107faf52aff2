"""The faults that public inference servers had, one check each, numbered as in the project's list.

    python security_test.py PROGRAM [STALLED_CONNECTIONS]
"""

import sys
import tempfile

from security_access import (
    check_07_keys, check_08_cache_scopes, check_10_states, check_12_routes, check_19_session_names, check_20_exposure,
)
from security_load import (
    check_16_framing, check_21_stalled, check_21_dropped, check_22_sigterm, check_23_overload, check_24_disconnects,
    check_25_cross_talk,
)
from security_requests import (
    check_01_counts, check_02_ids, check_03_prompts, check_04_echo, check_05_numbers, check_06_headers,
    check_09_templates, check_11_log_probs, check_13_overflow, check_14_long_runs, check_15_json,
    check_17_request_ids, check_18_addresses,
)
from server import KEY, MB, OTHER_KEY, Server, make_model, run_checks


def main() -> None:
    stalled = int(sys.argv[2]) if len(sys.argv) > 2 else 60
    with tempfile.TemporaryDirectory() as directory:
        program = make_model(directory, sys.argv[1])
        with Server(program, "--prefix-cache", 16 * MB) as s:
            run_checks((check_01_counts, check_02_ids, check_03_prompts, check_04_echo, check_05_numbers,
                        check_06_headers, check_09_templates, check_10_states, check_11_log_probs, check_13_overflow,
                        check_15_json, check_17_request_ids, check_18_addresses), s)
            assert s.alive() and s.stop() == 0, s.log()
        with Server(program, env={"LAPLACE_API_KEY": f"{KEY},{OTHER_KEY}"}, state="keyed") as s:
            run_checks((check_07_keys, check_08_cache_scopes, check_12_routes), s)
            assert s.alive() and s.stop() == 0, s.log()
        run_checks((check_14_long_runs, check_16_framing, check_19_session_names, check_20_exposure, check_21_dropped,
                    check_22_sigterm, check_23_overload, check_24_disconnects, check_25_cross_talk), program)
        run_checks((check_21_stalled,), program, stalled)


if __name__ == "__main__":
    main()
