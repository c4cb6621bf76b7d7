"""llama.cpp's server, and agents that ask it all at once and note when tokens come.

Agents are threads here: what they do for each token is small beside what the server does for it.
"""

import http.client
import json
import subprocess
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from socket import socket
from types import TracebackType
from typing import Self

PATIENCE = 60


class Server:
    """A server with a slot for each agent: one cache for all of them, prompts cached, no flash
    attention."""

    def __init__(self, programs: Path, model: Path, threads: int, slots: int, context: int) -> None:
        with socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        compute = ("-t", threads, "-tb", threads, "-fa", "off", "-ngl", 0)
        cache = ("--parallel", slots, "-kvu", "-c", context, "--cache-prompt")
        where = ("--host", "127.0.0.1", "--port", self.port)
        self.command = [programs / "llama-server", "-m", model, *compute, *cache, *where]

    def __enter__(self) -> Self:
        self.log: list[str] = []
        command = [*map(str, self.command)]
        self.process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace"
        )
        threading.Thread(target=lambda: self.log.extend(self.process.stderr or ()), daemon=True).start()
        end = time.monotonic() + PATIENCE
        while not self.serves():
            if self.process.poll() is not None or time.monotonic() > end:
                self.process.kill()
                raise RuntimeError("llama-server does not serve:\n" + "".join(self.log[-20:]))
            time.sleep(0.02)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def serves(self) -> bool:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except OSError:
            return False

    def round(self, prompts: list[list[int]], tokens: int) -> list["Agent"]:
        """Agents that start together, when all have ended."""
        barrier = threading.Barrier(len(prompts))
        agents = [Agent(self.port, prompt, tokens, barrier) for prompt in prompts]
        for agent in agents:
            agent.start()
        for agent in agents:
            agent.end()
        return agents


@dataclass
class Agent:
    """One request, and when its tokens came, in milliseconds since it was sent."""

    port: int
    prompt: list[int]
    tokens: int
    barrier: threading.Barrier | None = None
    times: list[float] = field(default_factory=list)
    timings: dict = field(default_factory=dict)
    begun: threading.Event = field(default_factory=threading.Event)
    stopping: bool = False
    failure: Exception | None = None

    def start(self) -> None:
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        try:
            self.ask()
        except Exception as failure:
            self.failure = failure
        finally:
            self.begun.set()

    def ask(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        connection.connect()
        body = json.dumps({
            "prompt": self.prompt, "n_predict": self.tokens, "temperature": 0, "stream": True,
            "cache_prompt": True, "ignore_eos": True,
        })
        if self.barrier:
            self.barrier.wait()
        begin = time.perf_counter()
        connection.request("POST", "/completion", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise RuntimeError(f"llama-server: {answer.read().decode()}")
        for line in answer:
            if line.startswith(b"data: "):
                self.hear(json.loads(line[6:]), (time.perf_counter() - begin) * 1e3)
                if self.stopping:
                    break
        connection.close()

    def hear(self, event: dict, at: float) -> None:
        if "error" in event:
            raise RuntimeError(f"llama-server: {event['error']}")
        if event.get("stop"):
            self.timings = event["timings"]
        else:
            self.times.append(at)
            self.begun.set()

    def end(self) -> None:
        self.thread.join()
        if self.failure:
            raise self.failure

    def mark(self) -> None:
        """Forgets what came, but for the last: the next gap begins with it."""
        del self.times[:-1]

    def gaps(self) -> list[float]:
        return [later - earlier for earlier, later in zip(self.times, self.times[1:])]


def rate(agents: list[Agent]) -> float:
    """Tokens per second that came while all of them were generating."""
    begin, end = max(agent.times[0] for agent in agents), min(agent.times[-1] for agent in agents)
    came = sum(begin < at <= end for agent in agents for at in agent.times)
    return came / (end - begin) * 1e3 if end > begin else float("nan")


def beside(server: Server, prompt: list[int], long: list[int], tokens: int) -> tuple[list[float], list[float]]:
    """Gaps between the tokens of one agent alone, and while another's long prompt is computed."""
    server.round([prompt], tokens)
    [alone] = server.round([prompt], tokens)
    live = Agent(server.port, prompt, 4000)
    live.start()
    live.begun.wait()
    live.mark()
    server.round([long], 1)
    live.stopping = True
    live.end()
    return alone.gaps(), live.gaps()
