"""A run of a workflow as one trace: the workflow, its steps, tools and chats, each below the other."""

from contextlib import AsyncExitStack

from fakes.collector import Received
from router.tracing.conftest import Watched
from workflows.rooms import http, llm, start_rooms

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SPEC = {
    "steps": [
        http("search", "http://tool/find"),
        llm("write", "{{ steps.search.text }}", depends="search"),
        {"name": "sub", "workflow": {"name": "inner"}, "depends": "write"},
    ]
}


async def test_a_run_is_a_trace_of_workflow_steps_tools_and_chats(watched: Watched) -> None:
    async with AsyncExitStack() as stack:
        here = await start_rooms(stack, watched.gateway, SPEC, others={"inner": {"steps": [llm("deep", "hi")]}})
        body = {"model": "workflow/research", "messages": [{"role": "user", "content": "a secret question"}]}
        answer = await here.client.post(
            "/v1/chat/completions", json=body, headers={"traceparent": f"00-{TRACE}-{SPAN}-01"}
        )
        assert answer.status_code == 200, answer.text
        collector = await watched.told()

    spans = {span.span_id: span for span in collector.spans}
    run = collector.named("invoke_workflow default/research")
    search, write = collector.named("execute_tool search"), collector.named("llm write")
    sub, deep = collector.named("invoke_workflow inner"), collector.named("llm deep")

    def above(span: Received) -> set[str]:
        found = set()
        while span.parent_id in spans:
            span = spans[span.parent_id]
            found.add(span.name)
        return found

    assert {span.trace_id for span in collector.spans} == {TRACE}
    assert [one.parent_id for one in (search, write, sub, deep)] == [run.span_id] * 3 + [sub.span_id]
    asked = sorted((span for span in collector.spans if span.kind == "client"), key=lambda span: span.began_at)
    assert [span.attributes["gen_ai.operation.name"] for span in asked] == ["chat"] * 2
    assert [{"llm write", "llm deep"} & above(span) for span in asked] == [{"llm write"}, {"llm deep"}]
    of_run = {"gen_ai.operation.name": "invoke_workflow", "gen_ai.workflow.name": "default/research"}
    assert of_run.items() <= run.attributes.items()
    assert (run.attributes["tidepool.verdict"], run.attributes["tidepool.tokens"]) == ("Succeeded", 14)
    of_tool = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "search", "tidepool.step": "search"}
    assert of_tool.items() <= search.attributes.items()
    assert sub.attributes["gen_ai.operation.name"] == "invoke_workflow"
    assert "secret" not in str(collector.spans)
