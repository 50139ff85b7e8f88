from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

provider = OpenAIProvider(base_url="http://localhost:30000/v1", api_key="none")
model = OpenAIChatModel("tiny", provider=provider, settings={"max_tokens": 8, "temperature": 0})
result = Agent(model).run_sync("def add(a, b):")
print(result.output)
