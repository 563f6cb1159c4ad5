"""Which line guards each public report of workflows, and the proof: without the line its test is red.

`python tests/router/workflow/guards.py [REPORT ...]` copies the router, breaks one line at a time and runs the
test that must fail then. It takes some minutes; test_guards.py holds the table against the reports and the code.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # it is a script, too

from scripted.guards import ROOT, TESTS, Guard, prove

__all__ = ["GUARDS", "REPORTS", "ROOT", "TESTS"]

# The numbers of the public reports of other engines of workflows, as docs/workflows.md has them; 3 and 6 were
# never given. 12 has those without a number: of vLLM's queue, and of the semantic router's caps and fields.
REPORTS = (1, 2, 4, 5, 7, 8, 9, 10, 11, 12)

_FLOW = "router/tidepool_router/workflow"
_FRAME = f"{_FLOW}/core/frame.py"
_DRIVER = f"{_FLOW}/driver.py"
_SERVING = f"{_FLOW}/serving.py"
_HERE = "router/workflow"
_RUN = f"{_HERE}/test_run.py"
_REPORTED = f"{_HERE}/test_reported.py"
_SOCKETS = f"{_HERE}/test_serving.py"
_IN_ORDER = '"results": [item_read(unit) for unit in work.units],'
_GONE = 'driver.cancel("the client has gone")'
_KEPT = "if await self._written(lambda: self._journal.commit(run, self.claim.fence, key, ending)):"
_BY_PRIORITY = "insort(self._order, -priority)"
GUARDS = (
    Guard(
        1, "an output that cannot be evaluated leaves the run open",
        f"{_RUN}::test_an_answer_that_cannot_be_composed_fails_the_run_argo_14337",
        _FRAME, 'self._conclude(Verdict.FAILED, f"output: {why}", now)', "pass",
    ),
    Guard(
        1, "items that cannot be made leave it open",
        f"{_RUN}::test_a_step_whose_items_cannot_be_made_fails_and_its_follower_does_not_hang_argo_14337",
        _FRAME, 'self._end_step(work, Phase.ERRORED, f"withParam: {why}", now)', "pass",
    ),
    Guard(
        1, "so does an answer that the next step cannot read",
        f"{_REPORTED}::test_an_answer_that_the_next_step_cannot_read_ends_the_run_argo_14337",
        _DRIVER, "        except StepFailed as failure:\n            await self._failed(call, failure, spent)\n",
        "        except StepFailed:\n            raise\n",
    ),
    Guard(
        1, "so does what nobody foresaw, in the output",
        f"{_HERE}/test_serving_oddities.py::test_what_nobody_foresaw_ends_the_run_and_not_its_deadline",
        _DRIVER, '        except Exception as error:\n            why = _why(error, "output")',
        '        except StepFailed as error:\n            why = _why(error, "output")',
    ),
    Guard(
        1, "the deadline is never looked at",
        f"{_RUN}::test_the_deadline_is_not_retried_and_the_exit_step_has_time_of_its_own_argo_3244",
        _FRAME, "        if now >= self._out_of_time_at:\n            self._out_of_time(now)\n", "",
    ),
    Guard(
        1, "or not while a step is silent",
        f"{_REPORTED}::test_the_deadline_ends_a_run_whose_step_never_answers_argo_14337",
        _DRIVER, "asyncio.timeout(None if wake is None else max(0.0, wake - monotonic()))",
        "asyncio.timeout(None)",
    ),
    Guard(
        2, "items that succeeded run again",
        f"{_RUN}::test_only_the_failed_item_is_tried_again_argo_9190",
        _FRAME, "if unit.phase is Phase.WAITING and now >= unit.wake_at:",
        "if unit.phase in (Phase.WAITING, Phase.SUCCEEDED) and now >= unit.wake_at:",
    ),
    Guard(
        2, "each try of an item is a result",
        f"{_RUN}::test_whoever_joins_items_gets_each_once_in_the_order_of_the_input_argo_7617",
        f"{_FLOW}/core/values.py", _IN_ORDER,
        '"results": [item_read(unit) for unit in work.units for _ in range(unit.attempt)],',
    ),
    Guard(
        2, "results stand in the order in which they came",
        f"{_RUN}::test_whoever_joins_items_gets_each_once_in_the_order_of_the_input_argo_7617",
        f"{_FLOW}/core/values.py", _IN_ORDER,
        '"results": [item_read(unit) for unit in sorted(work.units, key=lambda unit: unit.attempt)],',
    ),
    Guard(
        2, "an end that is told twice ends an item twice",
        f"{_RUN}::test_what_has_ended_stays_as_it_ended",
        _FRAME, "        if unit is None or unit.phase is not Phase.RUNNING:\n            return\n"
        "        self._end_unit(", "        self._end_unit(",
    ),
    Guard(
        2, "what had ended runs again when a run is taken over",
        f"{_RUN}::test_a_run_that_is_taken_over_calls_only_what_had_not_ended",
        _FRAME, "before = self.board.known.pop(key, None)", "before = None",
    ),
    Guard(
        2, "a late result takes the place of the first one",
        f"{_HERE}/test_journal.py::test_the_first_ending_stands",
        f"{_FLOW}/sql_store.py", "sqlite.insert(table).on_conflict_do_nothing()",
        'sqlite.insert(table).prefix_with("OR REPLACE")',
    ),
    Guard(
        4, "the deadline is a timeout like others, and is tried again",
        f"{_RUN}::test_the_deadline_is_not_retried_and_the_exit_step_has_time_of_its_own_argo_3244",
        _FRAME,
        'self.out_of("DeadlineExceeded", f"not done within {self.place.bound or self.plan.spec.deadline}", now)',
        "pass",
    ),
    Guard(
        4, "a try waits for a time after the deadline",
        f"{_RUN}::test_a_try_that_could_only_begin_after_the_deadline_is_not_made",
        _FRAME, "return at if at < self._out_of_time_at else None", "return at",
    ),
    Guard(
        4, "a cancelled run keeps what it would try again",
        f"{_RUN}::test_a_cancelled_run_tries_nothing_again_argo_1620",
        _FRAME, "self._close(work, Phase.OMITTED, why or reason, now)", "pass",
    ),
    Guard(
        4, "and what it has under way",
        f"{_SOCKETS}::test_what_a_cancelled_run_has_under_way_is_cut_before_its_exit_step_ends",
        _DRIVER, "                case Stop(key):\n                    self._cut(key)\n",
        "                case Stop(key):\n                    pass\n",
    ),
    Guard(
        4, "the deadline kills the exit step",
        f"{_RUN}::test_the_deadline_is_not_retried_and_the_exit_step_has_time_of_its_own_argo_3244",
        _FRAME, "self._out_of_time_at = now + self.plan.exit_seconds", "pass",
    ),
    Guard(
        4, "an exit step may take for ever",
        f"{_RUN}::test_an_exit_step_that_hangs_ends_too",
        _FRAME, 'self.out_of("", f"not done within {self.plan.exit_seconds:g} s", now)', "pass",
    ),
    Guard(
        5, "an object holds the whole answer",
        f"{_HERE}/test_objects.py::test_what_an_object_holds_is_bounded_argo_12802",
        f"{_FLOW}/objects.py", "_sound(output[:MOST_OUTPUT_CHARACTERS])", "_sound(output)",
    ),
    Guard(
        5, "or the whole of a reason",
        f"{_HERE}/test_objects.py::test_a_reason_that_an_object_holds_is_bounded_argo_12802",
        f"{_FLOW}/objects.py", "_sound(summary.reason[:MOST_REASON_CHARACTERS])", "_sound(summary.reason)",
    ),
    Guard(
        5, "how a run stands is read with all that its steps made",
        f"{_HERE}/test_journal.py::test_what_is_told_of_a_run_leaves_out_what_its_steps_made_argo_13783",
        f"{_FLOW}/sql_journal.py", "told = sql_tables.endings_told(connection, run)",
        "told = sql_tables.endings(connection, run)",
    ),
    Guard(
        5, "and told with it",
        f"{_SOCKETS}::test_the_state_of_a_run_does_not_hold_what_its_steps_made_argo_13783",
        f"{_FLOW}/sql_tables.py", "own.phase, own.reason, own.tokens, own.pool, own.began, own.ended)",
        'own.phase, own.text.label("reason"), own.tokens, own.pool, own.began, own.ended)',
    ),
    Guard(
        7, "a step that fails is fed to the next",
        f"{_RUN}::test_a_hard_failure_fails_the_run_and_names_itself_kserve_2484",
        _FRAME, "self._stop(Verdict.FAILED, failure, now, _FAST.format(work.plan.name))", "pass",
    ),
    Guard(
        7, "an answer of 400 is one like others",
        f"{_SOCKETS}::test_a_hard_failure_is_the_status_of_the_whole_kserve_2484",
        f"{_FLOW}/tools.py", "if not 200 <= status < 300:", "if False:",
    ),
    Guard(
        7, "a run that failed is answered 200",
        f"{_SOCKETS}::test_a_hard_failure_is_the_status_of_the_whole_kserve_2484",
        _SERVING, "raise Refused(_failure(driver))", "pass",
    ),
    Guard(
        7, "its stream ends as if it were whole",
        f"{_REPORTED}::test_a_stream_of_a_run_that_fails_ends_with_the_error_kserve_2484",
        _SERVING, '            yield _event({"error": fault})\n            return  # without [DONE]',
        '            yield _event({"error": fault})  # without [DONE]',
    ),
    Guard(
        7, "where the others end first, the failure is forgotten",
        f"{_RUN}::test_without_fail_fast_the_others_end_first",
        _FRAME, "self._failed = self._failed or failure", "pass",
    ),
    Guard(
        8, "a stream is made of the answer that has ended",
        f"{_SOCKETS}::test_the_first_token_comes_before_the_last_step_has_ended_kserve_2837",
        _DRIVER, "live = self._on_text if key.path == self.live_step else None", "live = None",
    ),
    Guard(
        8, "whoever leaves a stream leaves its run behind",
        f"{_REPORTED}::test_a_client_that_leaves_a_stream_cuts_the_engines_answer_kserve_2837",
        _SERVING, f'        yield b"data: [DONE]\\n\\n"\n    finally:\n        {_GONE}',
        '        yield b"data: [DONE]\\n\\n"\n    finally:\n        pass',
    ),
    Guard(
        8, "whoever waits for a whole answer does, too",
        f"{_SOCKETS}::test_a_client_that_leaves_stops_every_step",
        _SERVING, f"        finally:  # the client has gone, or all is over\n            {_GONE}",
        "        finally:\n            pass",
    ),
    Guard(
        8, "the engine does not hear that nobody reads",
        f"{_REPORTED}::test_a_client_that_leaves_a_stream_cuts_the_engines_answer_kserve_2837",
        f"{_FLOW}/inprocess.py", "        finally:\n            wire.hang_up()",
        "        finally:\n            pass",
    ),
    Guard(
        9, "branches share a session",
        f"{_SOCKETS}::test_branches_have_sessions_of_their_own_and_steps_in_a_row_share_one_kagent_2137",
        f"{_FLOW}/steps.py", 'item = "" if call.key.item is None else f"[{call.key.item}]"', 'item = ""',
    ),
    Guard(
        9, "calls of one workflow inside share a session",
        f"{_REPORTED}::test_parallel_runs_of_one_workflow_inside_share_neither_context_nor_session_kagent_2538",
        f"{_FLOW}/steps.py", "return f\"{run}{'.' if owner else ''}{owner}{item}\"", 'return f"{run}{item}"',
    ),
    Guard(
        9, "and a context",
        f"{_REPORTED}::test_parallel_runs_of_one_workflow_inside_share_neither_context_nor_session_kagent_2538",
        f"{_FLOW}/core/turns.py", 'place = Place(over, f"{key}#{unit.attempt}/",',
        'place = Place(over, f"{key.step}#{unit.attempt}/",',
    ),
    Guard(
        9, "what keeps a caller on a pod is taken for the session of all that it calls",
        f"{_REPORTED}::test_what_keeps_a_caller_on_a_pod_is_no_name_of_its_runs_kagent_2137",
        _SERVING, "_PASSED_ON: Final = (contract.HEADER_PRIORITY, contract.HEADER_TENANT)",
        "_PASSED_ON: Final = (contract.HEADER_PRIORITY, contract.HEADER_TENANT, contract.HEADER_SESSION)",
    ),
    Guard(
        9, "two runs of one workflow share what has ended",
        f"{_RUN}::test_two_runs_share_nothing_kagent_2137",
        _FRAME, "self.works = {name: StepWork(step, place.scope) for name, step in plan.steps.items()}",
        "self.works = globals().setdefault(\n            f\"works of {plan.name}\",\n"
        "            {name: StepWork(step, place.scope) for name, step in plan.steps.items()},\n        )",
    ),
    Guard(
        10, "a step is tried again without a pause",
        f"{_RUN}::test_only_the_failed_item_is_tried_again_argo_9190",
        _FRAME, "at = now + work.plan.retry.wait_seconds(attempt)", "at = now",
    ),
    Guard(
        10, "a server that stays away is asked as often as before",
        f"{_HERE}/test_breakers.py::test_a_host_that_stays_away_is_left_alone_longer_each_time",
        f"{_FLOW}/breakers.py", "now + min(CAP_SECONDS, FIRST_SECONDS * 2.0 ** min(over, 10))",
        "now + FIRST_SECONDS",
    ),
    Guard(
        10, "when it may be back, all ask at once",
        f"{_HERE}/test_breakers.py::test_one_call_finds_out_whether_the_host_is_back",
        f"{_FLOW}/breakers.py", "breaker.probing_until = now + FIRST_SECONDS", "pass",
    ),
    Guard(
        10, "a tool that is down is called again and again",
        f"{_HERE}/test_outbound.py::test_a_host_that_fails_again_and_again_is_left_alone_kagent_1530",
        f"{_FLOW}/tools.py", "self._breakers.require(place, monotonic())", "pass",
    ),
    Guard(
        10, "one that hangs is called again and again",
        f"{_HERE}/test_candidates.py::test_a_tool_that_hangs_is_left_alone_kagent_1530",
        f"{_FLOW}/tools.py", "            if timed_out(cut):\n", "            if False:\n",
    ),
    Guard(
        10, "so is an MCP server",
        f"{_HERE}/test_mcp.py::test_a_server_that_is_down_is_left_alone_kagent_1530",
        f"{_FLOW}/mcp_tools.py", "self._breakers.require(place, monotonic())", "pass",
    ),
    Guard(
        10, "the model does not see why its tool failed",
        f"{_HERE}/test_nested.py::test_a_soft_tool_that_fails_is_told_to_the_model_kagent_1530",
        f"{_FLOW}/picks.py", 'turn["text"] if turn["status"] == "Succeeded" else turn["reason"]', 'turn["text"]',
    ),
    Guard(
        10, "what an MCP tool calls an error is an answer",
        f"{_HERE}/test_mcp.py::test_a_tool_that_fails_says_why",
        f"{_FLOW}/mcp_tools.py", "if result.is_error:", "if False:",
    ),
    Guard(
        10, "a server that cannot list its tools fails the calls that they have done",
        f"{_HERE}/test_mcp.py::test_a_tool_is_called_once_where_the_list_of_tools_cannot_be_had_kagent_2845",
        f"{_FLOW}/mcp_tools.py", "_let_lists_fail(session.session)\n", "pass\n",
    ),
    Guard(
        10, "a server that is down takes its tools from the model",
        f"{_HERE}/test_mcp.py::test_a_server_that_is_down_takes_no_tool_from_the_model_kagent_2845",
        f"{_FLOW}/steps.py", "response_format=picks.schema(step.options)",
        'response_format=picks.schema({} if any(one["reason"] for one in turns) else step.options)',
    ),
    Guard(
        11, "what could not be written is acknowledged",
        f"{_HERE}/test_journal.py::test_what_cannot_be_written_is_never_acknowledged_kagent_2086",
        f"{_FLOW}/sql_writer.py", "self._settle([(future, failure) for _, future in batch])",
        "self._settle([(future, None) for _, future in batch])",
    ),
    Guard(
        11, "a run is taken in that is not on disk",
        f"{_REPORTED}::test_a_run_that_cannot_be_written_is_not_taken_in_kagent_2086",
        f"{_FLOW}/manager.py", "return await self._journal.accept(run, self._owner, self._lease_seconds)",
        "return 1",
    ),
    Guard(
        11, "an answer of the disk is believed before it is one",
        f"{_HERE}/test_journal.py::test_the_file_is_written_through_to_the_disk",
        f"{_FLOW}/sql_store.py", "pragma synchronous=full", "pragma synchronous=normal",
    ),
    Guard(
        11, "the next step begins before the end of the one before is on disk",
        f"{_REPORTED}::test_nothing_builds_on_a_step_before_it_is_written_kagent_2086",
        _DRIVER, _KEPT, f"self._inbox.put_nowait(lambda now: self.run.ended(key, ending, now))\n        {_KEPT}",
    ),
    Guard(
        11, "one failure of the store loses a run",
        f"{_REPORTED}::test_a_store_that_fails_for_a_moment_loses_no_run_kagent_2086",
        _DRIVER, "_WRITES_AGAIN_SECONDS: Final = (0.1, 0.5, 2.0)", "_WRITES_AGAIN_SECONDS: Final = ()",
    ),
    Guard(
        12, "whoever waits at a full engine goes before a higher priority",
        f"{_HERE}/test_scheduling.py::test_a_higher_priority_goes_before_whoever_waits_at_a_full_engine_vllm_40004",
        "router/tidepool_router/admission/queue.py", _BY_PRIORITY, "self._order.append(-priority)",
    ),
    Guard(
        12, "the same through sockets",
        "router/proxy/test_admission.py::test_what_the_engine_would_only_queue_waits_here_and_goes_by_priority",
        "router/tidepool_router/admission/queue.py", _BY_PRIORITY, "self._order.append(-priority)",
    ),
    Guard(
        12, "bounds of parts multiply to more than the bound of the whole",
        f"{_RUN}::test_a_run_makes_no_more_calls_than_its_bound_however_its_parts_multiply_sr_1456",
        _FRAME, "self.board.calls_left -= 1", "pass",
    ),
    Guard(
        12, "a field of a workflow has no effect, and nobody is told",
        f"{_HERE}/test_known.py::test_fields_that_have_no_effect_are_named_once_sr_2946",
        f"{_FLOW}/manager.py",
        "ignored = tuple(unknown_fields(AgentWorkflowSpec, known.source.spec)[:_MOST_IGNORED])",
        "ignored: tuple[str, ...] = ()",
    ),
    Guard(
        12, "one within others is not found",
        "api/test_problems.py::test_unknown_fields_are_read_over_and_listed",
        "crds/tidepool_api/problems.py", 'yield from _unknown(fields[key], inner, f"{path}.{key}")', "pass",
    ),
    Guard(
        12, "a mistyped field of a request is dropped",
        f"{_REPORTED}::test_a_field_that_nobody_knows_is_refused_by_name_sr_2946",
        _SERVING, 'if body.keys() - {"input", "seed"}:', "if False:",
    ),
)  # fmt: skip


if __name__ == "__main__":
    sys.exit(prove(GUARDS, sys.argv[1:], ("router", "crds"), ("--timeout=30", "-m", "not postgres"), 120.0))
