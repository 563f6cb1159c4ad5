"""`make demo`: from nothing to a pool that scales, each step told with its time, the cluster left up."""

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import openai
import yaml

from scenarios import life, stage
from scenarios.dump import dump
from scenarios.evidence import BUILD, Evidence, prometheus_sample
from scenarios.kube import Kube, KubectlError, WaitTimeoutError
from scenarios.streams import figures, load
from scenarios.world import SYSTEM_NAMESPACE, World

TOKENS = 200
IMAGES_HINT = (
    "give IMAGES=registry/prefix, where tidepool-router and tidepool-operator are (see docs/operations.md)"
)


def main(arguments: list[str] | None = None) -> int:
    """Run the demo. Returns 0 when every stream was whole, 1 when one was not, 2 when it could not be set up."""
    options = _parser().parse_args(arguments)
    evidence = Evidence(folder=BUILD / "demo")
    try:
        with _stage(options, evidence) as world:
            return _play(world)
    except (stage.StageError, KubectlError) as error:
        print(f"\ndemo: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--context", help="a context of your kubeconfig: use that cluster, build none")
    parser.add_argument("--images", help="registry/prefix of the images, with --context")
    parser.add_argument("--tag", help="tag of the images (router=...,operator=... when they differ)")
    parser.add_argument("--pool", type=Path, help="a ModelPool manifest instead of the demo's own, with --context")
    parser.add_argument("--prometheus", default="", help="URL of Prometheus as pods see it, with --context")
    return parser


@contextlib.contextmanager
def _stage(options: argparse.Namespace, evidence: Evidence) -> Iterator[World]:
    if options.context is None:
        stage.cluster("check")
        yield stage.own_cluster(evidence)
        return
    if options.images is None:
        raise stage.StageError(IMAGES_HINT)
    with _foreign(options, evidence) as world:
        yield world


@contextlib.contextmanager
def _foreign(options: argparse.Namespace, evidence: Evidence) -> Iterator[World]:
    """A cluster that the user has: nothing of it is changed but what the chart and the pool bring."""
    kube = Kube(context=options.context, kubectl=os.environ.get("KUBECTL", "kubectl"))
    program = os.environ.get("HELM", "helm")
    kube.run("version", timeout_seconds=20)
    stage.install(kube, program, stage.Images(options.images, _tags(options.tag)), options.prometheus)
    evidence.say(f"chart installed by helm in context {options.context}; operator and gateways are Ready")
    pool = _read_pool(options.pool) if options.pool else stage.default_pool(kube)
    namespace = pool["metadata"].setdefault("namespace", "default")
    if kube.get("namespace", namespace, "default") is None:
        kube.run("create", "namespace", namespace)
    with stage.forwarded(kube, SYSTEM_NAMESPACE, stage.gateway_service(kube), 80) as gateway_url:
        yield World(
            kube=kube,
            pool=pool,
            gateway_url=gateway_url,
            prometheus_url="",
            evidence=evidence,
            helm=program,
            own=False,
        )


def _tags(text: str | None) -> dict[str, str]:
    """Tags by image; one tag for both, or `router=a,operator=b`. Without a tag: the chart's version."""
    if text is None:
        version = yaml.safe_load((stage.CHART / "Chart.yaml").read_text())["appVersion"]
        return dict.fromkeys(stage.IMAGE_NAMES, str(version))
    if "=" not in text:
        return dict.fromkeys(stage.IMAGE_NAMES, text)
    return {f"tidepool-{part}": tag for part, _, tag in (one.partition("=") for one in text.split(","))}


def _read_pool(path: Path) -> dict[str, object]:
    pool = yaml.safe_load(path.read_text())
    if not isinstance(pool, dict) or pool.get("kind") != "ModelPool":
        raise stage.StageError(f"{path} is not a ModelPool manifest")
    return pool


def _play(world: World) -> int:
    replicas = [(0.0, 0)]
    began = time.monotonic()

    def count() -> None:
        replicas.append((round(time.monotonic() - began, 1), len(world.ready_pods())))

    try:
        life.apply_pool(world)
        count()
        world.evidence.say("kubectl get mp:\n" + world.kube.run("get", "mp", "-n", world.namespace))
        first_token = _chat(world)
        stage.find_service(world)
        with load(world.demo_routes(), world.model, TOKENS) as clients:
            life.scale_up(world, clients)
            count()
            clients.keep(2)
            with world.transition("load falls: 2 -> 1", clients):
                world.wait_settled(1, timeout_seconds=life.START_SECONDS)
            count()
    except (WaitTimeoutError, AssertionError) as problem:
        folder = dump(world.kube, BUILD / "demo" / "failed", (world.namespace, SYSTEM_NAMESPACE))
        print(f"\ndemo: {problem}\ndemo: objects, events and logs are in {folder}", file=sys.stderr)
        return 1
    seen, fired = figures(clients.records), _fired(world)
    world.evidence.facts |= seen | {"first_chat_ttft_seconds": first_token, "replicas_over_time": replicas}
    world.evidence.facts |= {"alerts": fired}
    world.evidence.write()
    _tell(world, seen, first_token, replicas, fired)
    return 0 if seen["failed"] == 0 and not fired else 1


def _fired(world: World) -> list[str]:
    """Alerts that fired in the last ten minutes; on a foreign cluster they are not ours to judge."""
    if not world.prometheus_url:
        return []
    fired = prometheus_sample(world.prometheus_url, 'max_over_time(ALERTS{alertstate="firing"}[10m])')["result"]
    return sorted({str(one["metric"]["alertname"]) for one in fired})


def _chat(world: World) -> float:
    """One streamed chat, shown as it comes. Returns the time to first token in seconds."""
    client = openai.OpenAI(base_url=f"{world.gateway_url}/v1", api_key="unused", timeout=120, max_retries=0)
    began, first = time.monotonic(), 0.0
    print(f"\n{world.model} says (random weights make no sense): ", end="", flush=True)
    for chunk in client.chat.completions.create(
        model=world.model,
        messages=[{"role": "user", "content": "What is a tide pool?"}],
        max_tokens=48,
        stream=True,
    ):
        first = first or time.monotonic() - began
        for choice in chunk.choices:
            print(choice.delta.content or "", end="", flush=True)
    print(flush=True)
    world.evidence.say(f"streamed a chat; first token after {first * 1000:.0f} ms")
    return round(first, 3)


def _tell(
    world: World, seen: dict[str, float], first_token: float, replicas: list[tuple[float, int]], fired: list[str]
) -> None:
    steps = ", ".join(f"{one.name} {one.seconds:.0f} s" for one in world.evidence.transitions)
    flags = (
        f"export KUBECONFIG={world.kube.kubeconfig}"
        if world.own
        else f"kubectl config use-context {world.kube.context}"
    )
    print(
        f"""
What was seen
  steps                 {steps}
  time to first token   {first_token * 1000:.0f} ms alone; {seen["ttft_p50_seconds"] * 1000:.0f} ms median, \
{seen["ttft_p90_seconds"] * 1000:.0f} ms p90 under load
  replicas over time    {", ".join(f"{at:.0f} s: {count}" for at, count in replicas)}
  streams               {seen["streams"]:.0f}, {seen["tokens"]:.0f} tokens, each counted by the client
  requests failed: {seen["failed"]:.0f}
  alerts that fired: {", ".join(fired) or "none"}

Try next
  {flags}
  kubectl get mp -n {world.namespace}
  kubectl describe mp {world.name} -n {world.namespace}
  curl -N {world.gateway_url}/v1/chat/completions -H 'content-type: application/json' \\
    -d '{{"model": "{world.model}", "stream": true, "messages": [{{"role": "user", "content": "hello"}}]}}'
  {"make down    # removes every trace" if world.own else f"helm uninstall tidepool -n {SYSTEM_NAMESPACE}"}""",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
