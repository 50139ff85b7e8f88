import os

from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import GenerateConfig

os.environ.update(TINY_BASE_URL="http://localhost:30000/v1", TINY_API_KEY="none")
task = Task(
    dataset=[Sample(input="def add(a, b):")],
    config=GenerateConfig(max_tokens=8, extra_body={"return_embedding": True}),
)
log = eval(task, model="openai-api/tiny/tiny", display="none")[0]
event = next(event for event in log.samples[0].events if event.event == "model")
print(len(event.call.response["choices"][0]["embedding"]))
